"""Protocols that give the server labelled synthetic samples, and the quality of such samples."""

from commonweal.protocols.synthetic._quality import Quality, assess, frechet, nearest
from commonweal.protocols.synthetic.fedcgan import FedCGAN
from commonweal.protocols.synthetic.fedcvae import FedCVAE
from commonweal.protocols.synthetic.fedevg import FedEvg

__all__ = ["FedCGAN", "FedCVAE", "FedEvg", "Quality", "assess", "frechet", "nearest"]
