"""Contents with random changes, and what a reader may do with them.

Files of tests/corpus are read as they are, then with random changes. `COMMONWEAL_FUZZ=5000` tries
that many changes of each kind, as `make campaign` does.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from commonweal.base.errors import CommonwealError

CORPUS = Path(__file__).parent / "corpus"


fuzz = settings(
    max_examples=int(os.environ.get("COMMONWEAL_FUZZ", "15")),
    deadline=None,
    derandomize="COMMONWEAL_FUZZ" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)


TOKENS = [b"inf", b"nan", b"-1", b"1e400", b"9" * 400, b"null", b"true", b"[", b"]", b"{", b"}"]
TOKENS += [b'"', b"'", b"\0", b"\xff", b"\r", b"\n", b"\xe2\x80\xa8", b"[]", b"{}", b"=", b",", b""]


@st.composite
def changed(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of some contents with up to four places replaced, and sometimes cut short."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = begin + draw(st.sampled_from([0, 1, 4, 30]))
        data[begin:end] = draw(st.sampled_from(TOKENS) | st.binary(max_size=6))
    left = draw(st.sampled_from([len(data), len(data), len(data) - 1, len(data) - 100]))
    return bytes(data[: max(0, left)])


def files(kind: str) -> list[Path]:
    return sorted((CORPUS / kind).iterdir())


def contents(kind: str) -> list[bytes]:
    return [path.read_bytes() for path in files(kind)]


def accepted(reader: Callable[[], object]) -> None:
    """Call a reader, which may raise errors of our own only."""
    with warnings.catch_warnings(), suppress(CommonwealError):
        warnings.simplefilter("ignore")
        reader()
