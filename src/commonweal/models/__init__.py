"""Models: a function per file, from the shape of a row and the number of outputs to a module."""

from commonweal.models.cnn import cnn
from commonweal.models.convnet import convnet
from commonweal.models.distilbert import distilbert
from commonweal.models.efficientnet_b0 import efficientnet_b0
from commonweal.models.energy_cnn import energy_cnn
from commonweal.models.energy_resnet import energy_resnet
from commonweal.models.femnist_cnn import femnist_cnn
from commonweal.models.logistic import logistic
from commonweal.models.lstm import lstm
from commonweal.models.m5 import m5
from commonweal.models.mlp import mlp
from commonweal.models.mobilenet import mobilenet
from commonweal.models.resnet10 import resnet10
from commonweal.models.resnet18_gn import resnet18_gn
from commonweal.models.vgg import vgg

__all__ = [
    "cnn",
    "convnet",
    "distilbert",
    "efficientnet_b0",
    "energy_cnn",
    "energy_resnet",
    "femnist_cnn",
    "logistic",
    "lstm",
    "m5",
    "mlp",
    "mobilenet",
    "resnet10",
    "resnet18_gn",
    "vgg",
]
