import time

from django.db import models


class Account(models.Model):
    balance = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"account {self.pk}"

    @classmethod
    def deposit(cls, pk: int, amount: int) -> int:
        """Read, think, write: two at once lose one of the deposits. The new balance."""
        account = cls.objects.get(pk=pk)
        time.sleep(0.02)  # ask another service
        account.balance += amount
        account.save()
        return account.balance

    @classmethod
    def audit(cls, pk: int) -> int:
        """By how much the balance changed while we looked at it."""
        before = cls.objects.get(pk=pk).balance
        time.sleep(1)
        return cls.objects.get(pk=pk).balance - before
