from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from bank.locking import one_at_a_time
from bank.models import Account


@require_POST
@one_at_a_time("account:{account_id}", wait=30)
def deposit(request: HttpRequest, account_id: int) -> JsonResponse:
    return JsonResponse({"balance": Account.deposit(account_id, amount=1)})


@require_POST
@one_at_a_time("account:{account_id}")
def deposit_or_409(request: HttpRequest, account_id: int) -> JsonResponse:
    return JsonResponse({"balance": Account.deposit(account_id, amount=1)})


@require_POST
@one_at_a_time("account:{account_id}", wait=30)
def audit(request: HttpRequest, account_id: int) -> JsonResponse:
    return JsonResponse({"changed": Account.audit(account_id)})


@require_POST
def plain_deposit(request: HttpRequest, account_id: int) -> JsonResponse:
    return JsonResponse({"balance": Account.deposit(account_id, amount=1)})
