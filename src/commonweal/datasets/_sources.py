"""Where the original files come from: address and checksum where they may be downloaded, words where they may not."""

from typing import NamedTuple

__all__ = ["SOURCES", "File", "advice"]


class File(NamedTuple):
    folder: str
    name: str
    url: str
    hash: str  # "sha256:..." or, where only that is published, "md5:..."


def _files(folder: str, base: str, hashes: dict[str, str]) -> tuple[File, ...]:
    return tuple(File(folder, name, base + name, digest) for name, digest in hashes.items())


_IDX = [f"{part}-{what}-ubyte.gz" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")]
_MNIST = _files(
    "mnist",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    dict(
        zip(
            _IDX,
            (
                "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
            strict=True,
        )
    ),
)

# Checksums are of the file itself or, for files that could not be had, from the publisher's list or public code.
SOURCES: dict[str, tuple[File, ...]] = {
    "mnist": _MNIST,
    "mnist-writers": _MNIST
    + _files(
        "qmnist_writers",
        "https://raw.githubusercontent.com/facebookresearch/qmnist/master/",
        {
            "qmnist-train-labels-idx2-int.gz": "sha256:"
            "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
            "qmnist-test-labels-idx2-int.gz": "sha256:9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
        },
    ),
    "fashion-mnist": _files(
        "fashion_mnist",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        dict(
            zip(
                _IDX,
                (
                    "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                    "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                    "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                    "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
                strict=True,
            )
        ),
    ),
    "heart": _files(
        "heart",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
        {
            "processed.cleveland.data": "sha256:a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
            "processed.hungarian.data": "sha256:d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
            "processed.switzerland.data": "sha256:834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
            "processed.va.data": "sha256:e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
        },
    ),
    "adult": _files(
        "adult",
        "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
        {
            "adult.data": "md5:5d7c39d7b8804f071cdd1f2a7c460872",
            "adult.test": "md5:35238206dfdf7f1fe215bbb874adecdc",
        },
    ),
    "mqp": _files(
        "mqp",
        "https://raw.githubusercontent.com/curai/medical-question-pair-dataset/master/",
        {"mqp.csv": "sha256:94ecd609a9ca9350e1cff2438aa55a034762f01c1a68732aaae3e4be7b03cf57"},
    ),
    "cifar10": _files(
        "cifar10",
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
    ),
    "cifar100": _files(
        "cifar100",
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-binary.tar.gz": "md5:03b5dce01913d631647c71ecec9e9cb8"},
    ),
    "cinic10": _files(
        "cinic10",
        "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/",
        {"CINIC-10.tar.gz": "md5:6ee4d0c996905fe93221de577967a372"},
    ),
    "tiny-imagenet": _files(
        "tiny_imagenet",
        "http://cs231n.stanford.edu/",
        {"tiny-imagenet-200.zip": "md5:90528d7ca1a48142e341f4ef8d21d0de"},
    ),
    "speech-commands": _files(
        "speech_commands",
        "http://download.tensorflow.org/data/",
        {
            "speech_commands_v0.02.tar.gz": "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
        },
    ),
    "medmnist": _files(
        "medmnist",
        "https://zenodo.org/records/10519652/files/",
        {
            "pneumoniamnist.npz": "md5:28209eda62fecd6e6a2d98b1501bb15f",
            "dermamnist.npz": "md5:0744692d530f8e62ec473284d019b0c7",
            "organcmnist.npz": "md5:0afa5834fb105f7705a7d93372119a21",
        },
    ),
}

# What to do where a licence or a form forbids a download, or no stable address is known.
ELSEWHERE = {
    "berka": "the eight .asc tables of the PKDD'99 Discovery Challenge (account, district, loan, order, trans ...)",
    "femnist": "make them with LEAF (github TalwalkarLab/leaf, data/femnist) and copy its data/train and data/test",
    "celeba": "identity_CelebA.txt, list_attr_celeba.txt and img_align_celeba from the CelebA project's page",
    "reddit": "LEAF's subsampled Reddit (github TalwalkarLab/leaf, data/reddit): train_data.json and test_data.json",
    "shakespeare": "the Moby edition, a text file a play (github martin-gorner/tensorflow-rnn-shakespeare), in a .tar "
    "archive or a folder 'plays'; or LEAF's json with source = 'leaf'",
    "fsdd": "recordings/*.wav of github Jakobovski/free-spoken-digit-dataset, as a folder or recordings.tar.xz",
    "isic": "train_test_split.csv of FLamby and the images of the ISIC 2019 challenge, preprocessed by FLamby",
    "stackoverflow": "stackoverflow_train.h5 and stackoverflow_test.h5 of TensorFlow Federated",
    "clothing1m": "the lists and images that its authors give on request (github Cysu/noisy_label)",
    "ptb-cornell": "ptb.{train,valid,test}.txt (Mikolov's Penn Treebank) and movie_lines.txt (Cornell movie dialogs)",
}


def advice(dataset: str) -> str:
    """What to do where a file is missing."""
    if dataset in SOURCES:
        return f"run 'commonweal data get {dataset}', or put them there"
    return f"put there {ELSEWHERE.get(dataset, 'the original files')}"
