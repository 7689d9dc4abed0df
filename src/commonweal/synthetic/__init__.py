"""Protocols that give the server labelled synthetic samples, and the quality of such samples."""

from commonweal.synthetic._quality import Quality, assess, frechet, nearest
from commonweal.synthetic.fedcgan import FedCGAN
from commonweal.synthetic.fedcvae import FedCVAE
from commonweal.synthetic.fedevg import FedEvg

__all__ = ["FedCGAN", "FedCVAE", "FedEvg", "Quality", "assess", "frechet", "nearest"]
