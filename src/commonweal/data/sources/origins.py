"""The origins of datasets' files: `registry.txt` lists what can be downloaded."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pooch

# The folders of datasets whose files are not in the folder of their name.
FOLDERS = {"mnist-writers": ("mnist", "qmnist_writers")}

# What a user must put into the folder of a dataset that cannot be downloaded.
MANUAL = {
    "emnist": (
        "the IDX files of EMNIST (emnist-letters-train-images-idx3-ubyte.gz and the like), from "
        "gzip.zip of https://www.nist.gov/itl/products-and-services/emnist-dataset"
    ),
    "femnist": (
        "the files data/train and data/test that LEAF makes (github TalwalkarLab/leaf, "
        "data/femnist)"
    ),
    "shakespeare": (
        "the Moby edition, a text file per play (github martin-gorner/tensorflow-rnn-shakespeare), "
        "in a .tar archive or a folder 'plays'; or LEAF's json with source = 'leaf'"
    ),
}


def registry(root: Path) -> "pooch.Pooch":
    """The files that can be downloaded, as <folder>/<name> below a data directory."""
    import pooch

    files = pooch.create(root, base_url="", retry_if_failed=2)
    files.load_registry(Path(__file__).with_name("registry.txt"))
    return files


def downloads(dataset: str) -> list[str]:
    """The files of a dataset that can be downloaded, as <folder>/<name>."""
    folders = FOLDERS.get(dataset, (dataset.replace("-", "_"),))
    files = registry(Path()).registry_files
    return [file for file in files if file.partition("/")[0] in folders]


def how_to_get(dataset: str) -> str:
    """Return what to do where a file is missing."""
    if downloads(dataset):
        return f"run 'commonweal data get {dataset}', or put them there"
    return f"put there {MANUAL.get(dataset, 'the original files')}"
