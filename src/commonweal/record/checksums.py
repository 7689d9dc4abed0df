"""Named tensors as a safetensors file that knows whether it was changed.

The file's metadata holds a digest of the tensors, their names, types and shapes, and of all other
facts in the metadata. Any safetensors reader opens the file.
"""

import json
import struct
from collections.abc import Mapping

import safetensors
import safetensors.torch
import torch

from commonweal.base.errors import RunError
from commonweal.base.files import digest
from commonweal.base.tensors import Tensors

KEY = "commonweal"  # one entry of the metadata: the order of several would not be fixed


def to_bytes(tensors: Tensors, **facts: str) -> bytes:
    """The bytes of a file with these tensors and facts."""
    copies = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    sealed = {"digest": _digest(copies, facts), **facts}
    return safetensors.torch.save(copies, {KEY: json.dumps(sealed, sort_keys=True)})


def from_bytes(data: bytes, name: str, sealed: bool = True) -> tuple[Tensors, dict[str, str]]:
    """The tensors and facts of a file. Raises RunError where they are not those that were written.

    Args:
        data: The file's bytes.
        name: What an error calls the file.
        sealed: Whether a file without a digest is refused.
    """
    try:
        tensors = safetensors.torch.load(data)
        (length,) = struct.unpack("<Q", data[:8])
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__")
        facts = None if metadata is None else dict(json.loads(metadata[KEY]))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{name} cannot be read ({error})") from None
    if facts is None:
        if sealed:
            raise RunError(f"{name} has no digest: it was not written by this version of a run")
        return tensors, {}
    if facts.pop("digest", None) != _digest(tensors, facts):
        raise RunError(f"{name} was changed after it was written: its digest differs")
    return tensors, facts


def _digest(tensors: Tensors, facts: Mapping[str, str]) -> str:
    parts = [json.dumps(facts, sort_keys=True).encode()]
    for name, value in sorted(tensors.items()):
        parts.append(f"\n{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        flat = value.reshape(-1)
        if flat.stride() != (1,):  # expanded, of one number
            flat = flat.clone(memory_format=torch.contiguous_format)
        parts.append(flat.view(torch.uint8).numpy().tobytes())
    return digest(*parts)
