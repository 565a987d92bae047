"""Certificates for tests."""

import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for the loopback address that vouches for itself, and its key; skips the test where openssl is missing."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key
