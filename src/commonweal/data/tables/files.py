"""CSV and Parquet files, read in batches: only a batch is in memory."""

import codecs
import csv
import gzip
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from commonweal.base.errors import DataError, EncodingError
from commonweal.data.sources.opened import note
from commonweal.data.split import repeated
from commonweal.data.tables import plain_table

if TYPE_CHECKING:
    import pyarrow

Batch = dict[str, "pyarrow.Array"]  # column -> numbers or strings, null where missing
Batches = Callable[[], Iterator[Batch]]
BLOCK = 1 << 24  # bytes of a CSV that are read at once
FIRST_BYTES = 1 << 16  # from which a CSV's separator and header are taken
LONGEST_HEADER = 1 << 24
OTHER_FORMATS = {  # how files begin that are no CSV -> what to do
    b"\x1f\x8b": "is compressed: name it .csv.gz",
    b"PK\x03\x04": "is a zip archive or an Excel workbook: save the table as CSV",
    b"\xd0\xcf\x11\xe0": "is an Excel workbook: save the table as CSV",
    b"PAR1": "is a Parquet file: name it .parquet",
}
CODE_PAGES = ("latin-1", "cp1252", "cp1250")  # the likeliest first
LARGEST = 2**53  # a whole number that float64 holds exactly, as all below it
ROWS = 100_000  # of a Parquet file that are read at once


def read_batches(path: Path, separator: str = "auto", encoding: str = "utf-8") -> Iterator[Batch]:
    """A CSV (may be .gz) or Parquet file, some rows at a time."""
    _check_file(path)
    if path.suffix == ".parquet":
        yield from _read_parquet(path)
    else:
        yield from _read_csv(path, separator, encoding)


def _check_file(path: Path) -> None:
    if not path.exists():
        raise DataError(
            f"there is no file {str(path)!r} (that is, {str(path.absolute())!r}): check the path"
        )
    problem = ""
    if path.is_dir():
        problem = "is a folder, not a table: dataset 'folder' reads a folder per client"
    elif path.suffix == ".npz":
        problem = "holds arrays, not columns: write the experiment yourself, with dataset 'table'"
    elif not path.is_file():
        problem = "is a pipe or device, which cannot be read twice: save it as a file"
    if problem:
        raise DataError(f"{str(path)!r} {problem}")
    note(path)


def separator_in(path: Path, encoding: str = "utf-8") -> str:
    """The separator of a CSV, from its first lines."""
    if path.suffix == ".parquet":
        return ","
    return plain_table.separator_of(_first_lines(path, encoding))


def _open(path: Path) -> gzip.GzipFile | io.BufferedReader:
    return gzip.open(path) if path.suffix == ".gz" else open(path, "rb")


def _first_lines(path: Path, encoding: str) -> list[str]:
    """The first lines of a file, at least the whole header."""
    start = b""
    with _open(path) as raw:
        while block := raw.read(FIRST_BYTES):
            start += block
            if b"\n" in block or b"\r" in block or len(start) > LONGEST_HEADER:
                break
    _check_bytes(path, start, encoding)
    if codecs.lookup(encoding).name == "utf-8":
        encoding = "utf-8-sig"  # which has, or has not, the byte order mark that Excel writes
    text = start.decode(encoding, errors="replace")
    lines = list(io.StringIO(text, newline=""))  # ends at \n and \r only, as pyarrow's do
    complete = lines[:-1] if len(start) >= FIRST_BYTES else lines
    return (complete or lines)[:20]


def _check_bytes(path: Path, start: bytes, encoding: str) -> None:
    """Raise EncodingError for UTF-16 that is read as something else, and for other formats."""
    for beginning, problem in OTHER_FORMATS.items():
        if start.startswith(beginning):
            raise DataError(f"{str(path)!r} {problem}")
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        return
    wide = _guess_wide(start)
    if wide:
        raise EncodingError(
            f"{str(path)!r} is {wide.upper()} text, not {encoding}: save it as UTF-8, or say "
            f"encoding = {wide!r}"
        )
    if b"\0" in start:
        raise DataError(
            f"{str(path)!r} has NUL bytes (the first is byte {start.index(0)}): it is not a CSV "
            "file, or it is damaged"
        )


def _guess_wide(start: bytes) -> str:
    """The encoding of a text with two bytes per letter; empty: it has none."""
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    pairs = len(start) // 2
    even, odd = start[: 2 * pairs : 2].count(0), start[1 : 2 * pairs : 2].count(0)
    if 4 * max(even, odd) < 3 * pairs or 4 * min(even, odd) > pairs or pairs < 2:
        return ""
    return "utf-16-be" if even > odd else "utf-16-le"


def guess_encoding(path: Path) -> str:
    """The likeliest encoding of a file.

    Letters of another code page appear as signs within words: "Pa³ka" for "Pałka".
    """
    if path.suffix == ".parquet" or _wrong_byte(path, "utf-8") is None:
        return "utf-8"
    with _open(path) as raw:
        start = raw.read(FIRST_BYTES)

    def signs(page: str) -> int:
        beyond = re.findall(r"[A-Za-z]([^\x00-\x7f])", start.decode(page, errors="replace"))
        return sum(not sign.isalpha() for sign in beyond)

    return _guess_wide(start) or min(CODE_PAGES, key=signs)


def _read_csv(path: Path, separator: str, encoding: str) -> Iterator[Batch]:
    import pyarrow
    from pyarrow import csv as arrow_csv

    try:
        codecs.lookup(encoding)
        lines = _first_lines(path, encoding)
        if separator == "auto":
            separator = plain_table.separator_of(lines)
        skipped = int(plain_table.names_separator(lines[:1]))
        header = next(filter(None, csv.reader(lines[skipped:], delimiter=separator)), [])
        _check_line(path, header)
        names = _unique_names(path, header)
        with arrow_csv.open_csv(
            path,
            arrow_csv.ReadOptions(block_size=BLOCK, encoding=encoding, skip_rows=skipped),
            arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(header, pyarrow.string()),
                null_values=list(plain_table.MISSING),
                strings_can_be_null=True,
            ),
        ) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield dict(zip(names, batch.columns, strict=True))
    except LookupError:
        raise DataError(f"encoding = {encoding!r} is unknown: write utf-8 or latin-1") from None
    except csv.Error as error:
        raise DataError(
            f"{str(path)!r} has a header that is not a line of names: {error}"
        ) from None
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeError) as error:
        raise _problem(path, separator, encoding, error) from None


def _problem(path: Path, separator: str, encoding: str, error: Exception) -> DataError:
    """Return the reason why a CSV cannot be read, found in the file and not read from the error."""
    import pyarrow

    file = repr(str(path))
    byte = _wrong_byte(path, encoding)
    if byte is not None:
        return EncodingError(
            f"{file} is not {encoding.upper()} text (byte {byte:#x}): save it as UTF-8, or say "
            f"encoding = {guess_encoding(path)!r}, which it seems to be"
        )
    rows = 0
    try:
        if separator == "auto":
            separator = separator_in(path, encoding)
        for number, columns, values in _rows_of_csv(path, separator, encoding):
            rows += 1
            if len(values) != columns:
                return DataError(
                    f"{file}, row {number}: {len(values)} values for {columns} columns (separator "
                    f"{separator!r}): {separator.join(values)[:60]!r}; correct its quotes and "
                    "separators"
                )
    except (OSError, EOFError, UnicodeError, csv.Error):
        rows = max(1, rows)  # it is cut short or damaged
    if isinstance(error, pyarrow.ArrowInvalid) and not rows:
        return DataError(f"{file} has no rows: check the file")
    return DataError(f"{file} cannot be read as a table, it is cut short or damaged: {error}")


def _rows_of_csv(path: Path, separator: str, encoding: str) -> Iterator[tuple[int, int, list[str]]]:
    """The rows below the header that are not empty: their number, the columns, their values."""
    columns = 0
    with io.TextIOWrapper(_open(path), encoding=encoding, newline="") as lines:
        for number, values in enumerate(csv.reader(lines, delimiter=separator)):
            is_first_line = number == 0 and plain_table.names_separator([separator.join(values)])
            if not values or is_first_line:
                continue
            if columns:
                yield number + 1, columns, values
            else:
                columns = len(values)


def _wrong_byte(path: Path, encoding: str) -> int | None:
    """The first byte of a file that is not of its encoding."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        with _open(path) as raw:
            while block := raw.read(1 << 20):
                decoder.decode(block)
    except UnicodeDecodeError as error:
        return int(error.object[error.start])
    except (OSError, EOFError):
        pass
    return None


def _check_line(path: Path, line: Sequence[str]) -> None:
    if not line:
        raise DataError(f"{str(path)!r} is empty: it needs a first line of different column names")
    if 2 * sum(not name.strip() for name in line) > len(line):
        raise DataError(
            f"{str(path)!r} begins with {' '.join(line).strip()!r}, which is no line of column "
            "names: delete the lines above them"
        )


def _unique_names(path: Path, line: Sequence[str]) -> list[str]:
    names = plain_table.header_names(line)
    twice = repeated(names)
    if twice:
        raise DataError(
            f"{str(path)!r} needs different column names, but two columns are called {twice[0]!r}: "
            "rename one"
        )
    return names


def _read_parquet(path: Path) -> Iterator[Batch]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = _unique_names(path, file.schema_arrow.names)
            for batch in file.iter_batches(ROWS):
                if batch.num_rows:
                    columns = map(_plain_array, names, batch.columns)
                    yield dict(zip(names, columns, strict=True))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{str(path)!r} is not a Parquet file, or is damaged: {error}") from None


def _plain_array(name: str, values: "pyarrow.Array") -> "pyarrow.Array":
    """A column of Parquet as float64 numbers, or as strings with null where missing."""
    import pyarrow
    import pyarrow.compute

    kind = values.type
    types = pyarrow.types
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if types.is_integer(kind) and len(values) > values.null_count:
        ends = pyarrow.compute.min_max(values).as_py()
        is_number = max(-ends["min"], ends["max"]) <= LARGEST  # ids of 17 digits stay strings
    if is_number:
        numbers = values.cast(pyarrow.float64())
        finite = pyarrow.compute.is_finite(numbers)
        return pyarrow.compute.if_else(finite, numbers, None)
    try:
        texts = values.cast(pyarrow.string())
    except pyarrow.ArrowException:
        raise DataError(
            f"column {name!r} holds {kind}, neither numbers nor strings: leave it out of the file"
        ) from None
    gap = pyarrow.compute.is_in(texts, pyarrow.array(plain_table.MISSING))
    return pyarrow.compute.if_else(gap, None, texts)
