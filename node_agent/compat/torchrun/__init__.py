"""Rendezvous handler for stock torchrun. Only this package imports torch, within torchrun's own process."""
