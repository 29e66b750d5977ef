"""Downloads over https that resume, never accept a part for the whole, and stay outside.

Neither the address nor a redirect of it may lead to plain http or to an address of this machine
or its own network, whatever a name resolves to.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from tqdm import tqdm
from urllib3.connection import HTTPSConnection
from urllib3.exceptions import HTTPError

CHUNK = 1 << 20
MAX_REDIRECTS = 5
ATTEMPTS = 3


class DownloadFailed(Exception):
    """Why a source could not be used; the next one may work."""


class _Interrupted(Exception):
    """The transfer broke off; what has arrived is kept and the rest can be asked for."""


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public internet."""
    found = ipaddress.ip_address(address.split("%")[0])
    return (getattr(found, "ipv4_mapped", None) or found).is_global


@dataclass(frozen=True)
class Policy:
    """What a download may do. ``ca_bundle`` replaces the certificates that are trusted."""

    may_connect: Callable[[str], bool] = is_public
    connect_seconds: float = 5
    read_seconds: float = 60
    max_bytes: int = 50 << 30
    ca_bundle: Path | None = None


def download(
    url: str, destination: Path, sha256: str | None, parts: Path, policy: Policy | None = None
) -> None:
    """Fetch ``url`` to the path ``destination``, all of it or nothing.

    What arrives is kept in the folder ``parts`` until it is complete, and a later call goes on
    from there if the server's file is still the same. Raises DownloadFailed with the reason.
    """
    transfer = _Transfer(url, sha256, parts, policy or Policy())
    transfer.complete()
    if sha256 and transfer.digest() != sha256 and transfer.resumed:
        # The two halves may be of different files; once more, from the start.
        transfer.discard()
        transfer.complete()
    if sha256 and transfer.digest() != sha256:
        transfer.discard()
        raise DownloadFailed(f"what arrived has another SHA-256 than {sha256}")
    transfer.move_to(destination)


class _Transfer:
    """One file on its way, kept in ``parts`` with what tells whether the server's still is it."""

    def __init__(self, url: str, sha256: str | None, parts: Path, policy: Policy) -> None:
        name = hashlib.sha256(url.encode()).hexdigest()[:16]
        self._url = url
        self._part = parts / f"{name}.part"
        self._validator = parts / f"{name}.validator"
        self._has_digest = sha256 is not None
        self._policy = policy
        self.resumed = False

    def digest(self) -> str:
        with self._part.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self._validator.unlink(missing_ok=True)
        self.resumed = False

    def move_to(self, destination: Path) -> None:
        os.replace(self._part, destination)
        self._validator.unlink(missing_ok=True)

    def complete(self) -> None:
        """Transfer what is missing, going on where a broken connection stopped."""
        self._part.parent.mkdir(parents=True, exist_ok=True)
        with _session(self._policy) as session:
            for _ in range(ATTEMPTS):
                try:
                    self._attempt(session)
                    return
                except _Interrupted as error:
                    reason = error
        raise DownloadFailed(
            f"the transfer broke off {ATTEMPTS} times ({reason}); what has arrived is kept, and "
            "the next run goes on from there"
        )

    def _attempt(self, session: requests.Session) -> None:
        have = self._part.stat().st_size if self._part.exists() else 0
        with _open(session, self._url, self._range_headers(have), self._policy) as response:
            if response.status_code == 206 and _range_start(response) == have:
                total = int(response.headers["Content-Range"].rpartition("/")[2])
                self.resumed = True
            elif response.status_code == 200:
                have, self.resumed = 0, False
                length = response.headers.get("Content-Length")
                total = int(length) if length else None
            elif response.status_code in (206, 416):  # a range that does not fit what is here
                self.discard()
                raise _Interrupted("the server offered another part of the file")
            else:
                raise DownloadFailed(f"HTTP {response.status_code} {response.reason}")
            self._check_offer(response, total, have)
            self._remember(response)
            self._receive(response, total, have)

    def _range_headers(self, have: int) -> dict[str, str]:
        # Without compression on the way: the file is wanted as it lies on the server.
        headers = {"Accept-Encoding": "identity"}
        if have and self._validator.exists():
            headers |= {"Range": f"bytes={have}-", "If-Range": self._validator.read_text()}
        elif have and self._has_digest:
            headers |= {"Range": f"bytes={have}-"}
        return headers

    def _check_offer(self, response: requests.Response, total: int | None, have: int) -> None:
        if response.headers.get("Content-Type", "").startswith("text/html"):
            raise DownloadFailed("the answer is a web page, not the file")
        if total is None and not self._has_digest:
            raise DownloadFailed(
                "the server does not say how long the file is and its SHA-256 is not known, so "
                "a part could not be told from the whole"
            )
        if total is not None and total > self._policy.max_bytes:
            raise DownloadFailed(
                f"{total:,} bytes are more than the {self._policy.max_bytes:,} allowed"
            )
        free = shutil.disk_usage(self._part.parent).free
        if total is not None and total - have > free:
            raise DownloadFailed(f"{total - have:,} bytes do not fit on the disk ({free:,} free)")

    def _remember(self, response: requests.Response) -> None:
        """Keep what tells later whether the file on the server is still the same."""
        tag = response.headers.get("ETag", "")
        validator = tag if tag.startswith('"') else response.headers.get("Last-Modified")
        if validator:
            self._validator.write_text(validator)
        else:
            self._validator.unlink(missing_ok=True)

    def _receive(self, response: requests.Response, total: int | None, have: int) -> None:
        name = urlsplit(self._url).path.rpartition("/")[2]
        with (
            self._part.open("ab" if have else "wb") as file,
            tqdm(
                desc=name, total=total, initial=have, unit="B", unit_scale=True, disable=None
            ) as progress,
        ):
            try:
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    file.write(chunk)
                    have += len(chunk)
                    progress.update(len(chunk))
                    if have > (self._policy.max_bytes if total is None else total):
                        break
            except (HTTPError, OSError) as error:
                raise _Interrupted(str(error)) from None
        if have > (self._policy.max_bytes if total is None else total):
            self.discard()
            raise DownloadFailed("more arrived than was announced or is allowed")
        if total is not None and have < total:
            raise _Interrupted(f"{have:,} of {total:,} bytes arrived")


def _range_start(response: requests.Response) -> int | None:
    match = re.fullmatch(r"bytes (\d+)-\d+/\d+", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _open(
    session: requests.Session, url: str, headers: dict[str, str], policy: Policy
) -> requests.Response:
    """The answer to GET, redirects followed one by one under ``policy``."""
    for _ in range(MAX_REDIRECTS + 1):
        _check_address(url, policy)
        try:
            response = session.get(
                url,
                headers=headers,
                stream=True,
                allow_redirects=False,
                timeout=(policy.connect_seconds, policy.read_seconds),
                verify=policy.ca_bundle and str(policy.ca_bundle),
            )
        except requests.exceptions.SSLError as error:
            reason = f"its certificate is not trusted ({_cause(error)})"
            raise DownloadFailed(f"cannot connect to {urlsplit(url).netloc}: {reason}") from None
        except requests.exceptions.Timeout:
            raise DownloadFailed(f"{urlsplit(url).netloc} did not answer in time") from None
        except requests.exceptions.RequestException as error:
            reason = _cause(error)
            raise DownloadFailed(f"cannot connect to {urlsplit(url).netloc}: {reason}") from None
        except ValueError as error:
            raise DownloadFailed(f"{url} redirects to what is no address: {error}") from None
        if not response.is_redirect:
            return response
        response.close()
        url = urljoin(url, response.headers["Location"])
    raise DownloadFailed(f"more than {MAX_REDIRECTS} redirects")


def _cause(error: requests.exceptions.RequestException) -> str:
    """The system's words, without those of the layers above it."""
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", inner)).rpartition(": ")[2]


def _check_address(url: str, policy: Policy) -> None:
    """Refuse an address before anything is sent there."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 443
    except ValueError as error:
        raise DownloadFailed(f"{url!r} is no address: {error}") from None
    if parts.scheme != "https" or not host:
        raise DownloadFailed(f"{url} is not an https address: refused")
    if requests.utils.get_environ_proxies(url).keys() & {"https", "all"}:
        return  # names are the proxy's to resolve
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DownloadFailed(f"cannot find {host} ({error})") from None
    for *_, address in found:
        _refuse_unless_allowed(host, address[0], policy.may_connect)


def _refuse_unless_allowed(host: str, address: str, may_connect: Callable[[str], bool]) -> None:
    if not may_connect(address):
        raise DownloadFailed(f"{host} is the local or private address {address}: refused")


class _GuardedConnection(HTTPSConnection):
    """Looks again at the address it is connected to: a name may have changed its meaning."""

    may_connect: Callable[[str], bool]

    def connect(self) -> None:
        super().connect()
        if self.proxy is None:
            try:
                _refuse_unless_allowed(self.host, self.sock.getpeername()[0], self.may_connect)
            except DownloadFailed:
                self.close()
                raise


class _GuardedAdapter(HTTPAdapter):
    def __init__(self, policy: Policy) -> None:
        self._connection = type(
            "Connection", (_GuardedConnection,), {"may_connect": staticmethod(policy.may_connect)}
        )
        super().__init__()

    def get_connection_with_tls_context(self, *args, **kwargs):
        pool = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = self._connection
        return pool


def _session(policy: Policy) -> requests.Session:
    session = requests.Session()
    session.mount("https://", _GuardedAdapter(policy))
    return session
