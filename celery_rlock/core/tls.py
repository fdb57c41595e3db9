"""TLS options, in the forms that Celery's settings and URLs use, as redis-py wants them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Any

from celery_rlock.errors import ConfigurationError

OPTIONS: dict[str, type] = {
    "ssl_cert_reqs": str,
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_ca_data": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
    "ssl_check_hostname": bool,
}

_CERT_REQS = {
    ssl.CERT_NONE: "none",
    ssl.CERT_OPTIONAL: "optional",
    ssl.CERT_REQUIRED: "required",
}


def options(given: Mapping[str, Any]) -> dict[str, Any]:
    """`ssl_cert_reqs` may be ssl.CERT_REQUIRED, "CERT_REQUIRED" or "required"; it is required unless said."""
    found = {_name(name): value for name, value in given.items()}
    found["ssl_cert_reqs"] = _cert_reqs(found.get("ssl_cert_reqs", ssl.CERT_REQUIRED))
    if found["ssl_cert_reqs"] == "none":
        found["ssl_check_hostname"] = False
    else:
        found.setdefault("ssl_check_hostname", True)
    return found


def _name(name: str) -> str:
    """The broker's may stand without `ssl_`, as RabbitMQ's do."""
    full = name if name.startswith("ssl_") else f"ssl_{name}"
    if full not in OPTIONS:
        raise ConfigurationError(f"unknown TLS option {name!r}: there are {', '.join(OPTIONS)}")
    return full


def _cert_reqs(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, int):
        return _CERT_REQS[ssl.VerifyMode(value)]
    word = re.sub(r"^cert_", "", str(value).lower())
    if word not in _CERT_REQS.values():
        raise ConfigurationError(f"ssl_cert_reqs must be required, optional or none, not {value!r}")
    return word
