"""Flags of the runs that pages show."""

from tests.support.cluster import PATIENT

FLAGS = ("--nnodes", "2:3", "--max-restarts", "3", "--run-id", "r/1", *PATIENT, "--last-call-timeout", "0.1")
