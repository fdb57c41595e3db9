from django.urls import path

from bank import views

urlpatterns = [
    path("accounts/<int:account_id>/deposit", views.deposit),
    path("accounts/<int:account_id>/deposit-or-409", views.deposit_or_409),
    path("accounts/<int:account_id>/deposit-later", views.deposit_later),
    path("accounts/<int:account_id>/audit", views.audit),
    path("accounts/<int:account_id>/plain-deposit", views.plain_deposit),
]
