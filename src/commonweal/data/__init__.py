"""Clients' samples, and what a server may know of them."""
