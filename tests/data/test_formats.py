"""Readers of raw files: exact rows, or a message with a line number; nothing between."""

import datetime
import gzip
import json
import string
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import polars as pl
import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lastclick.data.formats import read_interactions, sample_users
from lastclick.data.raw_formats import RawFormat, UserSample
from lastclick.errors import UserError

FIXTURES = Path(__file__).parent / "fixtures"
RAW = TypeAdapter(RawFormat)
COLUMNS = {"user": "user_id", "item": "item_id", "time": "timestamp"}
CSV = {"kind": "delimited", "separator": ",", **COLUMNS}
HEADER = "user_id,item_id,timestamp\n"
PARQUET = {"kind": "parquet", **COLUMNS}


def read(path, **raw):
    """Rows (user, item, seconds as a number) and the table they came from."""
    table = read_interactions(path, RAW.validate_python(raw), path.parent)
    frame = table.frame.collect(engine="streaming")
    assert frame.columns == ["user_id", "item_id", "timestamp"]
    assert frame.schema["timestamp"] == pl.Int64
    assert table.n_rows == len(frame)
    seconds = [ticks / table.ticks_per_second for ticks in frame["timestamp"]]
    return list(zip(frame["user_id"], frame["item_id"], seconds, strict=True)), table


def rows_of(path, content, **raw):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read(path, **raw)[0]


@pytest.fixture
def csv_file(tmp_path):
    return tmp_path / "clicks.csv"


def refusal(path, content, **raw):
    with pytest.raises(UserError) as caught:
        rows_of(path, content, **raw)
    assert str(path) in str(caught.value)
    return str(caught.value)


# The reported cases of wrong input


def test_big_ids_stay_apart(csv_file):
    ids = ["9007199254740992", "9007199254740993", "18446744073709551615", "18446744073709551616"]
    content = HEADER + "".join(f"1,{item},{1700000000 + n}\n" for n, item in enumerate(ids))
    assert rows_of(csv_file, content, **CSV) == [
        ("1", item, 1700000000 + n) for n, item in enumerate(ids)
    ]


@pytest.mark.parametrize("dtype", [pl.Int64, pl.UInt64, pl.Int128, pl.String])
def test_big_ids_of_parquet_stay_apart(tmp_path, dtype):
    big = {pl.Int64: 2**53, pl.UInt64: 2**64 - 2, pl.Int128: 2**100, pl.String: 2**70}[dtype]
    items = pl.Series([big, big + 1], dtype=pl.Int128).cast(dtype)
    path = tmp_path / "big.parquet"
    pl.DataFrame({"user_id": [1, 2], "item_id": items, "timestamp": [3, 4]}).write_parquet(path)
    rows, _ = read(path, **PARQUET)
    assert [str(item) for _, item, _ in rows] == [str(big), str(big + 1)]


def test_ids_that_went_through_floating_point_are_refused(tmp_path):
    path = tmp_path / "float.parquet"
    pl.DataFrame({"user_id": [1.0], "item_id": [2], "timestamp": [3]}).write_parquet(path)
    with pytest.raises(UserError, match=r"'user_id' is Float64, but ids are text or integers"):
        read(path, **PARQUET)


RAGGED = HEADER + '1,a,100\n1,b\n1,c,300,extra\n1,"d,400\n1,e,500\n'


def test_short_long_and_unclosed_rows_stop_with_their_lines(csv_file):
    message = refusal(csv_file, RAGGED, **CSV)
    assert "3 rows do not fit" in message
    assert "line 3: 2 columns instead of 3" in message
    assert "line 4: 4 columns instead of 3" in message
    assert 'line 5: a quote (")' in message


@pytest.mark.parametrize("content", [RAGGED, RAGGED.rstrip("\n")])
def test_lenient_leaves_them_out_and_counts_them(csv_file, content):
    csv_file.write_text(content)
    rows, table = read(csv_file, **CSV, rejects="lenient")
    assert rows == [("1", "a", 100), ("1", "e", 500)]
    assert table.n_rejected == 3


SECONDS = [1700000000, 1700086400, 1700172800, 1700259200000, 1700345600]


@pytest.mark.parametrize("time_format", ["auto", "s", "ms"])
@pytest.mark.parametrize("rejects", ["strict", "lenient"])
def test_milliseconds_among_seconds_are_refused(csv_file, time_format, rejects):
    content = HEADER + "".join(f"1,{i},{t}\n" for i, t in zip("abcde", SECONDS, strict=True))
    message = refusal(csv_file, content, **CSV, time_format=time_format, rejects=rejects)
    assert "line 5: timestamp 1700259200000 looks like milliseconds" in message


@pytest.mark.parametrize("dtype", [pl.Int64, pl.UInt64, pl.Float64])
def test_milliseconds_among_seconds_of_parquet_are_refused(tmp_path, dtype):
    path = tmp_path / "mixed.parquet"
    times = pl.Series(SECONDS, dtype=pl.Int64).cast(dtype)
    pl.DataFrame({"user_id": [1] * 5, "item_id": [*"abcde"], "timestamp": times}).write_parquet(
        path
    )
    with pytest.raises(UserError, match="row 4: timestamp 1700259200000 looks like milliseconds"):
        read(path, **PARQUET)


# Text as it comes from other programs


@pytest.mark.parametrize(
    "content",
    [
        b"user_id,item_id,timestamp\r\n1,a,100\r\n1,b,200\r\n",
        b"\xef\xbb\xbfuser_id,item_id,timestamp\n1,a,100\n1,b,200\n",
        b"\xef\xbb\xbfuser_id,item_id,timestamp\r\n1,a,100\n\n1,b,200\r\n\r\n",
        b"item_id,rating,timestamp,user_id\na,5.0,100,1\nb,3,200,1\n",
        b'"user_id","item_id","timestamp"\n"1","a","100"\n1,b,200\n',
    ],
    ids=["windows", "mark", "mixed line ends", "other order", "quoted"],
)
def test_ways_of_writing_the_same_rows(csv_file, content):
    assert rows_of(csv_file, content, **CSV) == [("1", "a", 100), ("1", "b", 200)]


def test_fields_keep_what_stands_in_quotes(csv_file):
    content = HEADER + '"Doe, J.","an ""odd"" id",100\nO\'Neil,東京 ☂,200\n'
    assert rows_of(csv_file, content, **CSV) == [
        ("Doe, J.", 'an "odd" id', 100),
        ("O'Neil", "東京 ☂", 200),
    ]


def test_quoted_rows_of_many_columns_and_long_texts(csv_file):
    names = [f"c{n}" for n in range(2003)] + ["user_id", "item_id", "timestamp"]
    long = 'a, ""long"" text ' * 20_000
    row = [f'"{n},x"' for n in range(2002)] + [f'"{long}"', "1", '"a"', "100"]
    content = ",".join(names) + "\n" + ",".join(row) + "\n" + ",".join(row[1:]) + "\n"
    csv_file.write_text(content)
    rows, table = read(csv_file, **CSV, rejects="lenient")
    assert rows == [("1", "a", 100)]
    assert table.n_rejected == 1
    assert "line 3: 2005 columns instead of 2006" in refusal(csv_file, content, **CSV)


def test_quotes_may_be_ordinary_characters(csv_file):
    content = HEADER + '12" disc,"a,100\n'
    assert rows_of(csv_file, content, **CSV, quote=None) == [('12" disc', '"a', 100)]
    assert "line 2: a quote" in refusal(csv_file, content, **CSV)


def test_ids_are_text_and_not_trimmed_or_shortened(csv_file):
    content = HEADER + "007,1.0,100\n7, 1.0,200\n"
    assert rows_of(csv_file, content, **CSV) == [("007", "1.0", 100), ("7", " 1.0", 200)]


def test_repeated_rows_are_kept(csv_file):
    assert rows_of(csv_file, HEADER + "1,a,100\n1,a,100\n", **CSV) == [("1", "a", 100)] * 2


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
def test_other_encodings_when_stated(csv_file, encoding):
    content = (HEADER + "1,café,100\n").encode(encoding)
    assert rows_of(csv_file, content, **CSV, encoding=encoding) == [("1", "café", 100)]


def test_another_encoding_than_stated_names_the_lines(csv_file):
    content = (HEADER + "1,a,100\n1,café,200\n").encode("latin-1")
    message = refusal(csv_file, content, **CSV)
    assert "line 3: not utf-8 text; state its `encoding:` in the raw: block" in message
    assert rows_of(csv_file, content, **CSV, rejects="lenient") == [("1", "a", 100)]


@pytest.mark.parametrize("kind", ["json_lines", "python_lines"])
def test_another_encoding_of_records_names_the_key(csv_file, kind):
    content = '{"user_id": "café", "item_id": 2, "timestamp": 3}\n'.encode("latin-1")
    message = refusal(csv_file, content, kind=kind, **COLUMNS)
    assert "line 1: not utf-8 text; state its `encoding:`" in message


@pytest.mark.parametrize("rows", ["", "1,a,100\n", "1,café,100\n"])
def test_another_encoding_of_the_header_is_not_taken_for_its_absence(csv_file, rows):
    content = ("\nuser_id,item_id,timestamp,préfecture\n" + rows).encode("latin-1")
    for rejects in ("strict", "lenient"):
        message = refusal(csv_file, content, **CSV, rejects=rejects)
        assert "line 2: not utf-8 text; state its `encoding:`" in message


def test_another_encoding_of_a_recbole_header(csv_file):
    content = "user_id:token\titem_id:token\ttimestamp:float\tpréfecture:token\n".encode("cp1252")
    message = refusal(csv_file, content, kind="recbole", **COLUMNS)
    assert "line 1: not utf-8 text; state its `encoding:`" in message


def test_rows_without_header_of_another_encoding_are_no_empty_file(csv_file):
    content = "café,a,100\n".encode("latin-1")
    message = refusal(csv_file, content, **CSV, columns=list(COLUMNS.values()))
    assert "line 1: not utf-8 text" in message


def test_utf_16_is_recognised_by_its_mark(csv_file):
    message = refusal(csv_file, (HEADER + "1,a,100\n").encode("utf-16"), **CSV)
    assert "`encoding: utf-16`" in message


@pytest.mark.parametrize("kind", ["delimited", "recbole", "json_lines", "python_lines"])
@pytest.mark.parametrize("n_rows", [0, 1, 1009])
def test_parquet_read_as_text_says_so(tmp_path, kind, n_rows):
    path = tmp_path / "clicks.csv"
    pl.DataFrame({"user_id": range(n_rows), "item_id": range(n_rows)}).write_parquet(path)
    raw = CSV if kind == "delimited" else {"kind": kind, **COLUMNS}
    for encoding in ("utf-8", "cp1252"):
        message = refusal(path, path.read_bytes(), **raw, encoding=encoding)
        assert "is a Parquet file: write `kind: parquet`" in message


def test_a_workbook_or_archive_read_as_text_says_so(csv_file):
    with zipfile.ZipFile(csv_file, "w", zipfile.ZIP_DEFLATED) as workbook:
        workbook.writestr("xl/workbook.xml", HEADER)
    for content in (csv_file.read_bytes(), gzip.compress(csv_file.read_bytes())):
        message = refusal(csv_file, content, **CSV)
        assert "is a ZIP archive or an Excel workbook: export" in message


def test_text_that_begins_like_the_magic_of_parquet(csv_file):
    content = "PAR1," + HEADER + "x,1,a,100\n"
    assert rows_of(csv_file, content, **CSV) == [("1", "a", 100)]


def test_mixed_separators_name_the_lines(csv_file):
    message = refusal(csv_file, HEADER + "1,a,100\n1;b;200\n1,c,300\n", **CSV)
    assert "line 3: 1 columns instead of 3" in message


def test_the_wrong_separator_is_suspected(csv_file):
    message = refusal(csv_file, HEADER.replace(",", ";") + "1;a;100\n", **CSV)
    assert "no column 'user_id'" in message
    assert "is the separator right?" in message


def test_a_renamed_column_names_the_nearest(csv_file):
    message = refusal(csv_file, "userid,item_id,timestamp\n1,a,100\n", **CSV)
    assert "no column 'user_id'" in message
    assert "did you mean 'userid'?" in message


def test_a_column_named_twice_is_refused(csv_file):
    message = refusal(csv_file, "user_id,item_id,timestamp,user_id\n1,a,100,2\n", **CSV)
    assert "several columns named 'user_id'" in message


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff"])
def test_an_empty_file_says_so(csv_file, content):
    assert "is empty" in refusal(csv_file, content, **CSV)


def test_a_header_alone_says_so(csv_file):
    assert "holds no interactions" in refusal(csv_file, HEADER, **CSV)


def test_nothing_left_says_how_many_were_rejected(csv_file):
    message = refusal(csv_file, HEADER + "1,a,x\n1,b,y\n", **CSV, rejects="lenient")
    assert "holds no interactions (2 were rejected)" in message


@pytest.mark.parametrize("user", ["", "  ", "NaN", "NULL", r"\N"])
def test_a_missing_user_is_no_user(csv_file, user):
    assert "line 2: no user" in refusal(csv_file, HEADER + f"{user},a,100\n", **CSV)


def test_a_user_may_be_called_none(csv_file):
    content = HEADER + "None,a,100\n"
    assert rows_of(csv_file, content, **CSV, missing=[]) == [("None", "a", 100)]


def test_nul_bytes_and_bare_carriage_returns_are_refused(csv_file):
    message = refusal(csv_file, HEADER.encode() + b"1,a\0,100\n1,b\rc,200\n1,d,300\n", **CSV)
    assert "line 2: holds a NUL byte" in message
    assert "2 rows do not fit" in message


def test_hopeless_files_stop_early(csv_file):
    message = refusal(csv_file, HEADER + "1,a\n" * 2_000_000, **CSV)
    assert "at least" in message


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_packed_files_are_recognised(csv_file, pack):
    content = HEADER + "1,a,100\n1,b,200\n"
    assert rows_of(csv_file, pack(content.encode()), **CSV) == [("1", "a", 100), ("1", "b", 200)]


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_packed_files_cut_short_are_refused(csv_file, pack):
    packed = pack((HEADER + "".join(f"{n},a,{n}\n" for n in range(1000, 5000))).encode())
    for length in (len(packed) // 2, len(packed) - 1):
        assert "is cut short" in refusal(csv_file, packed[:length], **CSV)


def test_damaged_packed_files_are_refused(csv_file):
    packed = bytearray(gzip.compress((HEADER + "1,a,100\n" * 500).encode()))
    packed[-8] ^= 1  # the checksum
    assert "is damaged" in refusal(csv_file, bytes(packed), **CSV)


def test_a_file_that_unpacks_beyond_belief_is_refused(csv_file, monkeypatch):
    monkeypatch.setattr("lastclick.data.text_lines.MAX_RATIO_APPLIES_FROM", 1 << 20)
    packed = gzip.compress((HEADER + "1,a,100\n" * 1_000_000).encode())
    assert "unpacks to more than" in refusal(csv_file, packed, **CSV)


def test_a_row_that_may_be_cut_is_not_believed(csv_file, caplog):
    content = HEADER + "1,a,100\n1,b,20"
    assert "line 3: the file ends inside this line" in refusal(csv_file, content, **CSV)
    assert rows_of(csv_file, content, **CSV, rejects="lenient") == [("1", "a", 100)]
    assert not caplog.records
    assert rows_of(csv_file, content + "0", **CSV) == [("1", "a", 100), ("1", "b", 200)]
    assert "ends without a line end" in caplog.text


def test_rows_may_span_blocks(csv_file, monkeypatch):
    monkeypatch.setattr("lastclick.data.text_lines.BLOCK_BYTES", 7)
    rows = [(f"u{n}", f"i{n % 13}", 1700000000 + n) for n in range(101)]
    content = "".join(f"{u},{i},{t}\n" for u, i, t in rows)
    assert rows_of(csv_file, HEADER + content, **CSV) == rows
    bad = HEADER + content.replace("u97,i6,", "u97,i6;")
    assert "line 99: 2 columns" in refusal(csv_file, bad, **CSV)


def test_a_line_of_a_billion_characters_needs_little_memory(tmp_path):
    path = tmp_path / "endless.csv"
    with path.open("wb") as file:
        file.write(HEADER.encode())
        file.truncate(10**9)  # a hole: no disk is used
    code = f"""
        import resource, sys
        from pathlib import Path
        from lastclick.data.formats import read_interactions
        from lastclick.data.raw_formats import Delimited
        from lastclick.errors import UserError
        raw = Delimited(**{CSV!r})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            read_interactions(Path({str(path)!r}), raw, Path({str(tmp_path)!r}))
        except UserError as error:
            print(error)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    message, kibibytes = run.stdout.strip().split("\n")
    assert "line 2: longer than 16,777,216 bytes" in message
    assert int(kibibytes) < 150 * 1024


# Times


@pytest.mark.parametrize(
    ("unit", "factor"), [("s", 1), ("ms", 1_000), ("us", 1_000_000), ("ns", 1_000_000_000)]
)
@pytest.mark.parametrize("stated", [True, False])
def test_units_are_stated_or_recognised(csv_file, unit, factor, stated):
    times = [1700000000, 0, 1700086400]
    content = HEADER + "".join(f"1,a,{time * factor}\n" for time in times)
    found = rows_of(csv_file, content, **CSV, time_format=unit if stated else "auto")
    assert [time for _, _, time in found] == times


def test_the_order_inside_a_second_survives(csv_file):
    csv_file.write_text(HEADER + "1,b,1700000000900\n1,a,1700000000100\n")
    _, table = read(csv_file, **CSV)
    ordered = table.frame.sort("timestamp").collect()
    assert ordered["item_id"].to_list() == ["a", "b"]
    assert (ordered["timestamp"] // table.ticks_per_second).to_list() == [1700000000] * 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2023-11-14T22:13:20Z", 1700000000),
        ("2023-11-14T22:13:20+00:00", 1700000000),
        ("2023-11-15T00:13:20+02", 1700000000),
        ("2023-11-14 17:43:20.500-0430", 1700000000.5),
        ("2023-11-14T22:13:20", 1700000000),
        ("2023-11-14 22:13", 1699999980),
        ("2023-11-14", 1699920000),
        ("1969-12-31", -86400),
        ("-86400", -86400),
        ("1700000000.25", 1700000000.25),
        ("1700000000.0", 1700000000),
    ],
)
def test_times_that_are_recognised(csv_file, text, seconds):
    assert rows_of(csv_file, HEADER + f"1,a,{text}\n", **CSV) == [("1", "a", seconds)]


@pytest.mark.parametrize(
    "text",
    ["2023-02-30", "2023-11-14T24:00:00", "14/11/2023", "1.7e9", " 100", "1_000", "inf", "x"],
)
def test_times_that_are_not(csv_file, text):
    content = HEADER + f"1,a,{text}\n"
    assert f"line 2: {text!r} is not a time" in refusal(csv_file, content, **CSV)


@pytest.mark.parametrize(
    ("times", "bad", "expected"),
    [
        (
            ["0", "1700000000", "2023-11-14"],
            2,
            "auto, which is s here because of line 3: 1700000000)",
        ),
        (["1700000000000", "12.3.2023"], 1, "is ms here because of line 2: 1700000000000)"),
        (["soon", "2023-11-14", "1700000000"], 0, "iso here because of line 3: '2023-11-14')"),
        (["soon", "2023-11-14", "1700000000"], 2, "iso here because of line 3: '2023-11-14')"),
        (["14/11/2023"], 0, "is not a time (time_format: auto)"),
    ],
)
def test_a_time_unlike_the_others_says_which_one_decided(csv_file, times, bad, expected):
    content = HEADER + "".join(f"1,a,{time}\n" for time in times)
    lines = refusal(csv_file, content, **CSV).split("\n")
    [line] = [line for line in lines if f"line {bad + 2}: '{times[bad]}' is not a time" in line]
    assert expected in line
    stated = refusal(csv_file, content, **CSV, time_format="%d %m %Y")
    assert "(time_format: %d %m %Y)" in stated


def test_a_text_time_of_parquet_unlike_the_others_says_which_one_decided(tmp_path):
    path = parquet(tmp_path / "t.parquet", timestamp=["2023-11-14", "1700000000"])
    with pytest.raises(UserError, match="which is iso here because of row 1: '2023-11-14'"):
        read(path, **PARQUET)


@pytest.mark.parametrize(
    ("digits", "pattern", "seconds"),
    [
        ("20231114", "%Y%m%d", 1699920000),
        ("202311142213", "%Y%m%d%H%M", 1699999980),
        ("20231114221320", "%Y%m%d%H%M%S", 1700000000),
    ],
)
def test_dates_written_as_one_number_are_not_taken_for_seconds(csv_file, digits, pattern, seconds):
    content = HEADER + f"1,a,{digits}\n"
    assert f"line 2: {digits} may be a date" in refusal(csv_file, content, **CSV)
    assert rows_of(csv_file, content, **CSV, time_format=pattern) == [("1", "a", seconds)]


def test_times_with_and_without_zone_do_not_mix(csv_file):
    content = HEADER + "1,a,2023-11-14T22:13:20+02:00\n1,b,2023-11-14\n1,c,2023-11-14T22:13:20\n"
    message = refusal(csv_file, content, **CSV)
    assert "line 4: time '2023-11-14T22:13:20' has no zone" in message


def test_a_pattern_of_ones_own(csv_file):
    content = HEADER + '1,a,"01 30, 2014"\n1,b,"12 1, 2010"\n'
    found = rows_of(csv_file, content, **CSV, time_format="%m %d, %Y")
    assert [time for _, _, time in found] == [1391040000, 1291161600]


@pytest.mark.parametrize(
    "slip",
    [
        {"time_format": "seconds"},
        {"time_format": "%H:%M"},
        {"separator": "::"},
        {"separator": '"'},
        {"separator": "\n"},
        {"columns": ["user_id", "item_id"]},
        {"rejcts": "lenient"},
        {"encoding": "klingon"},
    ],
)
def test_a_layout_that_cannot_be_is_refused_before_any_file(slip):
    with pytest.raises(ValidationError):
        RAW.validate_python(CSV | slip)


@given(st.datetimes(min_value=datetime.datetime(1, 1, 1)), st.timezones())
def test_iso_times_agree_with_the_standard_library(tmp_path_factory, moment, zone):
    moment = moment.replace(tzinfo=zone)
    offset = moment.utcoffset()
    whole_minutes = offset is not None and offset.total_seconds() % 60 == 0
    moment = moment if whole_minutes else moment.replace(tzinfo=datetime.UTC)
    path = tmp_path_factory.mktemp("iso") / "times.csv"
    path.write_text(HEADER + f"1,a,{moment.isoformat()}\n")
    _, table = read(path, **CSV)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    expected = (moment - epoch) // datetime.timedelta(microseconds=1)
    assert table.frame.collect()["timestamp"].to_list() == [expected]


# The public data sets' own layouts


def fixture(tmp_path, name, pack):
    path = tmp_path / f"{name}.gz" if pack else tmp_path / name
    content = (FIXTURES / name).read_bytes()
    path.write_bytes(gzip.compress(content) if pack else content)
    return path


def test_movielens_100k_and_its_recbole_form_hold_the_same(tmp_path):
    official = {
        "kind": "delimited",
        "separator": "\t",
        "quote": None,
        "columns": ["user_id", "item_id", "rating", "timestamp"],
        **COLUMNS,
    }
    rows, _ = read(fixture(tmp_path, "ml100k_u.data", False), **official, time_format="s")
    assert rows == [("3", "21", 881250001), ("5", "22", 891717001), ("3", "23", 878887001)]
    recbole, _ = read(fixture(tmp_path, "ml100k.inter", False), kind="recbole", **COLUMNS)
    assert recbole == rows


def test_movielens_1m(tmp_path):
    rows, _ = read(
        fixture(tmp_path, "ml1m_ratings.dat", False),
        kind="delimited",
        separator="::",
        quote=None,
        columns=["user", "movie", "rating", "time"],
        user="user",
        item="movie",
        time="time",
        time_format="s",
    )
    assert rows == [
        ("1", "11", 978300001),
        ("1", "12", 978300002),
        ("17", "13", 978300003),
        ("17", "11", 1046454001),
    ]


def test_amazon_reviews(tmp_path):
    rows, table = read(
        fixture(tmp_path, "amazon_reviews.json", True),
        kind="json_lines",
        user="reviewerID",
        item="asin",
        time="unixReviewTime",
        time_format="s",
    )
    first, second = "AMADEUPREADER1", "AMADEUPREADER2"
    assert rows == [
        (first, "B00MADEUP1", 1391040000),
        (second, "B00MADEUP1", 1362614400),
        (first, "B00MADEUP2", 1391040000),
        (first, "B00MADEUP2", 1391040000),
        (second, "B00MADEUP3", 1291161600),
    ]
    assert table.n_rejected == 0


def test_amazon_text_dates_mean_the_same_days(tmp_path):
    keys = {"kind": "json_lines", "user": "reviewerID", "item": "asin"}
    path = fixture(tmp_path, "amazon_reviews.json", True)
    numbers, _ = read(path, **keys, time="unixReviewTime")
    dates, _ = read(path, **keys, time="reviewTime", time_format="%m %d, %Y")
    assert dates == numbers


STEAM = {"kind": "python_lines", "user": "username", "item": "product_id", "time": "date"}


def test_steam_reviews(tmp_path):
    path = fixture(tmp_path, "steam_reviews.json", True)
    lenient = {"time_format": "%Y-%m-%d", "missing": [], "rejects": "lenient"}
    rows, table = read(path, **STEAM, **lenient)
    assert rows == [
        ("Ann ★", "900101", 1513468800),
        ("O'Neil", "900102", 1501632000),
        ("None", "900102", 1510444800),
        ("Bo", "900103", 1515024000),
    ]
    assert table.n_rejected == 3
    with pytest.raises(UserError, match="3 rows do not fit") as caught:
        read(path, **STEAM, **lenient | {"rejects": "strict"})
    for expected in ("line 4: no user", "line 5: no time", "line 6: is not a Python dictionary"):
        assert expected in str(caught.value)


def test_beeradvocate_reviews(tmp_path):
    rows, table = read(
        fixture(tmp_path, "beeradvocate.json", True),
        kind="python_lines",
        user="review/profileName",
        item="beer/beerId",
        time="review/time",
        time_format="s",
        missing=[],
        rejects="lenient",
    )
    assert rows == [
        ("amber fan", "90001", 1300000000),
        ("o'hara", "90002", 1300000100),
        ("None", "90001", 1299999900),
    ]
    assert table.n_rejected == 2


def test_diginetica_views_add_milliseconds_to_the_day(tmp_path):
    rows, table = read(
        fixture(tmp_path, "train-item-views.csv", False),
        kind="delimited",
        separator=";",
        quote=None,
        user="sessionId",
        item="itemId",
        time="eventdate",
        time_format="%Y-%m-%d",
        time_offset={"column": "timeframe", "unit": "ms"},
    )
    day = 1462752000
    assert rows == [
        ("101", "9001", day + 526),
        ("101", "9002", day + 1031.5),
        ("101", "9003", day + 243.25),
        ("102", "9002", day + 86400 + 75.125),
    ]
    assert table.ticks_per_second >= 1000


@pytest.mark.parametrize("packed", ["csv", "parquet", "parquet with text times"])
def test_zvuk_listens(tmp_path, packed):
    columns = {"user": "user_id", "item": "track_id", "time": "datetime"}
    path = fixture(tmp_path, "zvuk.csv", False)
    if packed == "csv":
        rows, _ = read(path, kind="delimited", separator=",", **columns)
    else:
        frame = pl.read_csv(path, try_parse_dates=packed == "parquet")
        path = tmp_path / "zvuk.parquet"
        frame.write_parquet(path)
        rows, _ = read(path, kind="parquet", **columns)
    assert [(str(user), str(item), time) for user, item, time in rows] == [
        ("901", "801", 1674072907.25),
        ("901", "802", 1674072907.125),
        ("902", "801", 1674072971),
    ]


def test_python_lines_are_never_run(tmp_path):
    path, proof = tmp_path / "evil.json", tmp_path / "ran"
    path.write_text(f"{{'username': __import__('pathlib').Path({str(proof)!r}).touch()}}\n")
    with pytest.raises(UserError, match="line 1: is not a Python dictionary"):
        read(path, **STEAM)
    assert not proof.exists()


@pytest.mark.parametrize(
    "line", ["[" * 200_000, "-" * 200_000 + "1", "9" * 5000, "{'a':" * 100_000]
)
@pytest.mark.parametrize("kind", ["json_lines", "python_lines"])
def test_absurd_records_are_refused(tmp_path, kind, line):
    message = refusal(tmp_path / "absurd", line + "\n", kind=kind, **COLUMNS)
    assert "line 1: is not a" in message


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"user_id": 1.5, "item_id": 2, "timestamp": 3}', "user (user_id) is the decimal"),
        ('{"user_id": true, "item_id": 2, "timestamp": 3}', "neither text nor a number"),
        ('{"user_id": 1, "item_id": [2], "timestamp": 3}', "neither text nor a number"),
        ('{"user_id": null, "item_id": 2, "timestamp": 3}', "no user"),
        ('{"user_id": 1, "item_id": 2}', "no time"),
        ('{"user_id": "\\ud800", "item_id": 2, "timestamp": 3}', "half a surrogate pair"),
        ('[1, "a", 3]', "is not a JSON object"),
    ],
)
def test_json_values_that_are_no_ids(tmp_path, record, reason):
    good = '{"user_id": 1, "item_id": 18446744073709551616, "timestamp": 100}\n'
    message = refusal(tmp_path / "odd.jsonl", good + record + "\n", kind="json_lines", **COLUMNS)
    assert "1 row does not fit" in message
    assert "line 2: " in message
    assert reason in message


def test_a_json_key_that_no_record_has(tmp_path):
    line = '{"user": 1, "item_id": 2, "timestamp": 3}\n'
    message = refusal(tmp_path / "x.jsonl", line, kind="json_lines", **COLUMNS, rejects="lenient")
    assert "no record has the key 'user_id'; the first record has 'user', " in message


def test_recbole_headers_name_types(tmp_path):
    path = tmp_path / "x.inter"
    raw = {"kind": "recbole", **COLUMNS}
    assert "with its type" in refusal(path, "user_id\titem_id\ttimestamp\n1\t2\t3\n", **raw)
    header = "user:token\titem_id:token\ttimestamp:float\n"
    assert "did you mean 'user'?" in refusal(path, header + "1\t2\t3\n", **raw)


# Parquet


def parquet(path, **columns):
    frame = {"user_id": [1, 1], "item_id": ["a", "b"], "timestamp": [100, 200]} | columns
    pl.DataFrame(frame).write_parquet(path)
    return path


@pytest.mark.parametrize(
    "times",
    [
        pl.Series([datetime.datetime(2023, 11, 14, 22, 13, 20), datetime.datetime(2023, 11, 15)]),
        pl.Series([1700000000, 1700006400], dtype=pl.UInt32),
        pl.Series([1700000000000, 1700006400000]),
        pl.Series([1700000000.0, 1700006400.0]),
        pl.Series(["2023-11-14T22:13:20Z", "2023-11-15T00:00:00Z"]),
        pl.Series(["1700000000", "1700006400"], dtype=pl.Categorical),
        pl.Series(
            [datetime.datetime(2023, 11, 15, 0, 13, 20), datetime.datetime(2023, 11, 15, 2)]
        ).dt.replace_time_zone("Europe/Helsinki"),
    ],
    ids=["datetime", "uint32", "ms", "float", "text", "categorical", "zone"],
)
def test_times_of_parquet(tmp_path, times):
    rows, _ = read(parquet(tmp_path / "t.parquet", timestamp=times), **PARQUET)
    assert [time for _, _, time in rows] == [1700000000, 1700006400]


def test_dates_of_parquet(tmp_path):
    days = [datetime.date(2023, 11, 14), datetime.date(1969, 12, 31)]
    rows, _ = read(parquet(tmp_path / "t.parquet", timestamp=days), **PARQUET)
    assert [time for _, _, time in rows] == [1699920000, -86400]


def test_dates_of_parquet_written_as_one_number(tmp_path):
    path = parquet(tmp_path / "t.parquet", timestamp=[20231114, 19691231])
    with pytest.raises(UserError, match="row 1: 20231114 may be a date, YYYYMMDD, or a number"):
        read(path, **PARQUET)
    rows, _ = read(path, **PARQUET, time_format="%Y%m%d")
    assert [time for _, _, time in rows] == [1699920000, -86400]


def test_a_pattern_for_floating_point_times_is_refused(tmp_path):
    path = parquet(tmp_path / "t.parquet", timestamp=[20231114.0, 20231115.0])
    with pytest.raises(UserError, match="'timestamp' is Float64, but time_format '%Y%m%d' is for"):
        read(path, **PARQUET, time_format="%Y%m%d")


def test_fractions_of_seconds_of_parquet(tmp_path):
    path = parquet(tmp_path / "t.parquet", timestamp=[1700000000.9, 1700000000.1])
    _, table = read(path, **PARQUET)
    ordered = table.frame.sort("timestamp").collect()
    assert ordered["item_id"].to_list() == ["b", "a"]


def test_gaps_of_parquet_name_the_rows(tmp_path):
    path = parquet(
        tmp_path / "gaps.parquet",
        user_id=[1, None, 3, 4, 5],
        item_id=["a", "b", " ", "d", "e"],
        timestamp=[100.0, 200.0, 300.0, float("nan"), 500.0],
    )
    with pytest.raises(UserError, match="3 rows do not fit") as caught:
        read(path, **PARQUET)
    for expected in ("row 2: no user", "row 3: no item", "row 4: no time"):
        assert expected in str(caught.value)
    rows, table = read(path, **PARQUET, rejects="lenient")
    assert rows == [(1, "a", 100), (5, "e", 500)]
    assert table.n_rejected == 3


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("timestamp", [True, False], "'timestamp' is Boolean, which is not a time"),
        ("timestamp", [[1], [2]], r"'timestamp' is List\(Int64\), which is not a time"),
        ("user_id", [[1], [2]], "'user_id' is List"),
        ("item_id", [True, False], "'item_id' is Boolean, but ids are text or integers"),
    ],
)
def test_columns_of_a_useless_type(tmp_path, column, values, message):
    path = parquet(tmp_path / "odd.parquet", **{column: values})
    with pytest.raises(UserError, match=message):
        read(path, **PARQUET)


def test_a_renamed_column_of_parquet_names_the_nearest(tmp_path):
    path = tmp_path / "renamed.parquet"
    pl.DataFrame({"userid": [1], "item_id": [2], "timestamp": [3]}).write_parquet(path)
    with pytest.raises(UserError, match=r"no column 'user_id'.*did you mean 'userid'\?"):
        read(path, **PARQUET)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"user_id,item_id,timestamp\n1,2,3\n"])
def test_what_is_no_parquet_says_so(tmp_path, content):
    message = refusal(tmp_path / "x.parquet", content, **PARQUET)
    assert "is not a whole, readable Parquet file" in message


def test_parquet_cut_short_is_refused(tmp_path):
    path = parquet(tmp_path / "whole.parquet")
    content = path.read_bytes()
    for length in (len(content) - 1, len(content) // 2, 20):
        assert "not a whole" in refusal(tmp_path / "cut.parquet", content[:length], **PARQUET)


def test_a_parquet_with_a_lying_schema_is_refused(tmp_path):
    # A schema element begins with the column's type, as a zigzag integer: INT64 is 2 (0x04), INT32
    # is 1 (0x02). The copy states another type for the same pages: believed, it reads 100 and 0.
    honest = parquet(tmp_path / "honest.parquet").read_bytes()
    element = honest.index(b"\x15\x04%\x02\x18\ttimestamp")
    lying = honest[:element] + b"\x15\x02" + honest[element + 2 :]
    path = tmp_path / "lying.parquet"
    message = refusal(path, lying, **PARQUET)
    assert "its schema says that 'timestamp' is INT32, the data INT64" in message
    assert pl.read_parquet(path)["timestamp"].to_list() == [100, 0]


def test_a_parquet_that_unpacks_beyond_belief_is_refused(tmp_path):
    path = tmp_path / "bomb.parquet"
    one = pl.repeat(1, 2_000_000, dtype=pl.UInt8, eager=True)
    pl.DataFrame({"user_id": one, "item_id": one, "timestamp": one}).write_parquet(path)
    assert path.stat().st_size < 20_000
    with pytest.raises(UserError, match=r"claims 2,000,000 rows in .* bytes: not credible"):
        read(path, **PARQUET)


# Any input at all

ids = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\x85\u2028"),
    min_size=1,
    max_size=12,
).filter(lambda text: text.strip() and text not in ("NA", "N/A", "<NA>", "NaN", "nan", "NULL"))
times = st.integers(min_value=0, max_value=10**11 - 1)
tables = st.lists(st.tuples(ids, ids, times), min_size=1, max_size=17)
fuzzing = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


def as_csv(rows):
    return HEADER + "".join(f"{quoted(user)},{quoted(item)},{time}\n" for user, item, time in rows)


def as_json(rows):
    return "".join(json.dumps(dict(zip(COLUMNS.values(), row, strict=True))) + "\n" for row in rows)


def as_python(rows):
    return "".join(repr(dict(zip(COLUMNS.values(), row, strict=True))) + "\n" for row in rows)


def as_recbole(rows):
    header = "user_id:token\titem_id:token\ttimestamp:float\n"
    return header + "".join(f"{user}\t{item}\t{time}\n" for user, item, time in rows)


WRITERS = {
    "delimited": (as_csv, CSV | {"missing": []}),
    "recbole": (as_recbole, {"kind": "recbole", **COLUMNS, "missing": []}),
    "json_lines": (as_json, {"kind": "json_lines", **COLUMNS, "missing": []}),
    "python_lines": (as_python, {"kind": "python_lines", **COLUMNS, "missing": []}),
}


@pytest.mark.parametrize("kind", WRITERS)
@fuzzing
@given(rows=tables)
def test_valid_tables_come_back_row_for_row(tmp_path, kind, rows):
    write, raw = WRITERS[kind]
    assert rows_of(tmp_path / "table", write(rows), **raw) == rows


@pytest.mark.parametrize("kind", WRITERS)
@fuzzing
@given(rows=tables, data=st.data())
def test_files_cut_anywhere_give_whole_rows_or_a_message(tmp_path, caplog, kind, rows, data):
    write, raw = WRITERS[kind]
    caplog.clear()
    content = write(rows).encode()
    cut = content[: data.draw(st.integers(0, len(content) - 1))]
    try:
        found = rows_of(tmp_path / "cut", cut, **raw)
    except UserError:
        return
    if not caplog.records:
        assert found == rows[: len(found)]
    else:  # the last row is taken with a warning
        assert found[:-1] == rows[: len(found) - 1]


@pytest.mark.parametrize("kind", [*WRITERS, "parquet"])
@pytest.mark.parametrize("packed", [False, True])
@fuzzing
@given(content=st.binary(max_size=300))
def test_random_bytes_are_refused(tmp_path, kind, packed, content):
    raw = PARQUET if kind == "parquet" else WRITERS[kind][1]
    with pytest.raises(UserError):
        rows_of(tmp_path / "noise", gzip.compress(content) if packed else content, **raw)


@pytest.mark.parametrize("kind", WRITERS)
@fuzzing
@given(lines=st.lists(st.text(string.digits + "ab,;\"\t {}[]:'\\\n\r\0", max_size=30), max_size=9))
def test_lines_that_nearly_fit(tmp_path, kind, lines):
    write, raw = WRITERS[kind]
    rows = [("1", "a", 100), ("2", "b", 200)]
    content = write(rows) + "\n".join(lines) + "\n"
    try:
        found = rows_of(tmp_path / "nearly", content, **raw)
    except UserError:
        return
    assert found[:2] == rows
    assert len(found) <= 2 + content.count("\n")


@fuzzing
@given(
    rows=tables,
    compression=st.sampled_from(["uncompressed", "snappy", "zstd"]),
    data=st.data(),
)
def test_parquet_round_trip_and_cuts(tmp_path, rows, compression, data):
    path = tmp_path / "table.parquet"
    frame = pl.DataFrame(rows, schema=list(COLUMNS.values()), orient="row")
    frame.write_parquet(path, compression=compression)
    assert read(path, **PARQUET)[0] == rows
    content = path.read_bytes()
    cut = content[: data.draw(st.integers(0, len(content) - 1))]
    with pytest.raises(UserError):
        rows_of(path, cut, **PARQUET)


@fuzzing
@given(data=st.data())
def test_a_parquet_with_a_damaged_footer_gives_its_rows_or_a_message(tmp_path, data):
    path = parquet(tmp_path / "footer.parquet", user_id=[1, 2], timestamp=[100, 2**33])
    rows, _ = read(path, **PARQUET)
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little") + 8
    for _ in range(data.draw(st.integers(1, 3))):
        content[-data.draw(st.integers(1, footer))] = data.draw(st.integers(0, 255))
    try:
        found = rows_of(path, bytes(content), **PARQUET)
    except UserError:
        return
    # Whether a number is signed, or a date, is stated nowhere else.
    assert [item for _, item, _ in found] == [item for _, item, _ in rows]
    assert len(found) == len(rows)


# Sampling


def test_a_sample_keeps_whole_users_whatever_the_order():
    frame = pl.DataFrame(
        {
            "user_id": [n % 101 for n in range(1009)],
            "item_id": range(1009),
            "timestamp": range(1009),
        }
    )
    sample = UserSample(users=17, seed=3)
    kept = sample_users(frame.lazy(), sample).collect()
    assert kept["user_id"].n_unique() == 17
    assert kept.equals(frame.filter(pl.col("user_id").is_in(kept["user_id"].unique().implode())))
    shuffled = sample_users(frame.sample(fraction=1, shuffle=True, seed=5).lazy(), sample).collect()
    assert shuffled.sort("item_id").equals(kept)
    as_text = frame.with_columns(pl.col("user_id").cast(pl.String))
    text_kept = sample_users(as_text.lazy(), sample).collect()
    assert text_kept["item_id"].equals(kept["item_id"])


def test_a_sample_depends_on_its_seed_alone():
    users = pl.DataFrame({"user_id": [f"u{n}" for n in range(13)]}).lazy()
    drawn = sample_users(users, UserSample(users=4, seed=17)).collect()["user_id"].to_list()
    assert drawn == ["u4", "u8", "u10", "u12"]
    other = sample_users(users, UserSample(users=4, seed=18)).collect()["user_id"].to_list()
    assert other != drawn


def test_a_sample_of_more_users_than_there_are_keeps_all():
    users = pl.DataFrame({"user_id": [3, 1, 2]}).lazy()
    assert sample_users(users, UserSample(users=5, seed=1)).collect().equals(users.collect())
