import time

from django.db import models


class Account(models.Model):
    balance = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"account {self.pk}"

    @classmethod
    def deposit(cls, pk: int, amount: int) -> int:
        """Read, wait, write. Two deposits at the same time lose one. Returns the new balance."""
        account = cls.objects.get(pk=pk)
        time.sleep(0.02)  # a call to another service
        account.balance += amount
        account.save()
        return account.balance

    @classmethod
    def audit(cls, pk: int) -> int:
        """Returns by how much the balance changes within a second."""
        before = cls.objects.get(pk=pk).balance
        time.sleep(1)
        return cls.objects.get(pk=pk).balance - before
