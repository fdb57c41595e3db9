"""The Redis users that docs/security.md tells its readers to create."""

from __future__ import annotations

import re
import uuid

from tests.support.daemon import ROOT

PAGE = ROOT / "docs" / "security.md"
PASSWORD = "of-the-least-user"
#: redis-py and a starting worker try these commands, and work without them.
NOT_NEEDED = {"client|setinfo", "info", "ping"}


def rules(name):
    """The ACL rules in the page's block of this name, one word each."""
    [block] = re.findall(
        rf'^```acl title="{name}"\n(.*?)^```', PAGE.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    words = block.replace(">PASSWORD", f">{PASSWORD}").split()
    return words[3:] if words[:2] == ["ACL", "SETUSER"] else words


def commands(name):
    """The commands that the rules of this name allow."""
    return [rule[1:] for rule in rules(name) if rule[0] == "+"]


def make_user(server, *more, without=()):
    """Create a user with the page's rules for workers and `more`, without these commands; return its name."""
    user = f"user-{uuid.uuid4().hex[:8]}"
    set_user(server, user, [*rules("worker"), *more], without)
    return user


def set_user(server, user, wanted, without=()):
    """Create or change this user: it has the rules `wanted`, but not these commands."""
    denied = {f"+{command}" for command in without}
    with server.client() as client:
        client.execute_command(
            "ACL", "SETUSER", user, "reset", *(rule for rule in wanted if rule not in denied)
        )


def login(server, user):
    """The server's URL with this user and its password."""
    return server.url.replace("redis://", f"redis://{user}:{PASSWORD}@")


def refused(server, user=None):
    """The commands that the server has refused to this user, or to all users."""
    with server.client(decode_responses=True) as client:
        entries = client.acl_log()
    return {entry["object"] for entry in entries if user in {None, entry["username"]}} - NOT_NEEDED
