"""Tasks of every shape that plain Celery runs: decorated, class-based, with a `__call__`, with models."""

# No `from __future__ import annotations`: Celery before 5.7 finds no model behind a string.

import copy
import functools
import json
import os
import pickle

import flask
from celery import Task
from pydantic import BaseModel

from celery_rlock import LockedTask, current_lock
from tests.support.app import record
from tests.worker.proj.app import app

web = flask.Flask("shop")


def seen(**fields):
    """What a run sees of its lock."""
    lock = current_lock()
    return {"key": lock.key, "held": lock.held, **fields}


@app.task(base=LockedTask, bind=True, shared=False)
def anything(*args, **kwargs):
    self, *rest = args
    return seen(name=self.name, args=rest, kwargs=kwargs)


def with_session(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function("session", *args, **kwargs)

    return wrapper


@app.task(base=LockedTask, shared=False)
@with_session
def injected(session, name, extra=None):
    return seen(session=session, name=name)


@app.task(base=LockedTask, shared=False, lock_key="injected:{name}")
@with_session
def injected_by_template(session, name="none", extra=None):
    return seen(session=session, name=name)


class ByClass(LockedTask):
    def run(self, name):
        return seen(task=self.name)


class ByOtherClass(LockedTask):
    def run(self, name):
        return seen(task=self.name)


by_class, by_other_class = app.register_task(ByClass()), app.register_task(ByOtherClass())


class FlaskTask(Task):
    """The base class of Flask's documentation, which also records whether it runs inside the lock."""

    abstract = True

    def __call__(self, *args, **kwargs):
        lock = current_lock()
        record(args[0], "context", held=lock is not None and lock.held)
        with web.app_context():
            return self.run(*args, **kwargs)


class FlaskFirst(FlaskTask, LockedTask):
    abstract = True


class LockFirst(LockedTask, FlaskTask):
    abstract = True


class FlaskAsSubclass(LockedTask):
    abstract = True
    __call__ = FlaskTask.__call__


class CallsSuper(LockedTask):
    abstract = True

    def __call__(self, *args, **kwargs):
        lock = current_lock()
        record(args[0], "context", held=lock is not None and lock.held)
        with web.app_context():
            return super().__call__(*args, **kwargs)


class CallsSuperFirst(CallsSuper, FlaskTask):
    abstract = True


FLASK = (FlaskFirst, LockFirst, FlaskAsSubclass, CallsSuper, CallsSuperFirst)


def in_context(self, name):
    record(name, "run", held=self.lock.held)
    return seen(app=flask.current_app.name, id=self.request.id, depth=self.lock.depth)


for base in FLASK:
    app.task(in_context, name=f"proj.{base.__name__}", base=base, bind=True, shared=False, lock_key="{name}")


class TenantTask(Task):
    """Takes an argument away before `run()`."""

    abstract = True
    typing = False

    def __call__(self, *args, **kwargs):
        self.request.tenant = kwargs.pop("tenant")
        return self.run(*args, **kwargs)


class LockedTenantTask(TenantTask, LockedTask):
    abstract = True


@app.task(base=LockedTenantTask, bind=True, shared=False)
def tenant_taken_away(self, name, dies=False):
    record(name, "start", key=self.lock.key, tenant=self.request.tenant)
    if dies:
        os._exit(1)
    return seen(tenant=self.request.tenant)


class Order(BaseModel):
    name: str
    kind: str = "new"


@app.task(base=LockedTask, shared=False, pydantic=True)
def order(order: Order):
    return seen(name=order.name, kind=order.kind)


@app.task(base=LockedTask, shared=False, pydantic=True, lock_key=lambda order: f"{order.kind}:{order.name}")
def order_by_callable(order: Order):
    return seen(name=order.name)


@app.task(base=LockedTask, shared=False, pydantic=True, lock_from="publish")
def unique_order(order: Order):
    return seen(name=order.name)


class OwnNames(LockedTask):
    """Has names of the user's own that begin as our options do."""

    abstract = True

    def lock_account(self):
        return "account"


@app.task(base=OwnNames, bind=True, shared=False, lock_key="{name}")
def copies_its_request(self, name):
    copied = copy.deepcopy(self.request.__dict__)
    pickle.dumps(copied)
    json.dumps(copied)
    return {"id": copied["id"], "own": self.lock_account()}
