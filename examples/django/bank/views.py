from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from bank import tasks
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
@transaction.atomic
def deposit_later(request: HttpRequest, account_id: int) -> JsonResponse:
    Account.objects.create(pk=account_id)
    tasks.deposit.delay_on_commit(account_id, 1)  # the task finds the account, because it is committed
    return JsonResponse({"balance": 0}, status=202)


@require_POST
def plain_deposit(request: HttpRequest, account_id: int) -> JsonResponse:
    return JsonResponse({"balance": Account.deposit(account_id, amount=1)})
