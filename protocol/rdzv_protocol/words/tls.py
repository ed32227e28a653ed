"""Messages about the credentials of an agent or an operator: bad certificate files, TLS errors, and refused tokens."""


def no_ssl(program: str, why: str) -> str:
    """`program`: the program that needs Python's `ssl`."""
    return (
        f"this Python has no TLS ({why}): start {program} with another Python, or build this one again with OpenSSL's "
        "headers (libssl-dev)"
    )


# Files.


def bad_file(flag: str, path: str, why: str) -> str:
    return f"{flag} {path}: {why}"


def unreadable(flag: str, path: str, why: str) -> str:
    return f"{flag} {path}: {why}: name a PEM file that this process can read"


def bad_pair(cert_flag: str, cert: str, key_flag: str, key: str, why: str) -> str:
    return f"{cert_flag} {cert}, {key_flag} {key}: {why}"


NO_KEY = "the file contains no private key (PEM)"
NO_CERTIFICATE = "the file contains no certificate (PEM)"


def other_key(cert_flag: str, cert: str, key_flag: str, key: str) -> str:
    return f"{key_flag} {key} does not belong to {cert_flag} {cert}"


def encrypted_key(flag: str, key: str) -> str:
    return f"{flag} {key} is encrypted, and no passphrase can be given: decrypt it with openssl pkey -in {key}"


# The server's certificate.

NOT_YET_VALID = "the server's certificate is not valid yet: compare the clocks"
EXPIRED = "the server's certificate has expired: replace it on the server, or compare the clocks"


def other_host(host: str) -> str:
    return f"the server's certificate is not for {host}: use a name of the certificate in --endpoint"


def other_authority(flag: str, ca: str) -> str:
    return f"no CA in {flag} {ca} has signed the server's certificate: name the file of the CA that has"


def bad_certificate(why: str) -> str:
    return f"the server's certificate is not valid ({why}): replace it on the server"


# The connection.


def no_tls(ca_flag: str) -> str:
    return f"the server does not use TLS: leave {ca_flag} out, or start the server with --tls-cert and --tls-key"


def asks_for_certificate(cert_flag: str, key_flag: str) -> str:
    return f"the server requires a certificate of this node: give {cert_flag} and {key_flag}"


def refused(why: str, cert_flag: str) -> str:
    return f"the server rejects this node's TLS connection ({why}): check {cert_flag}"


def fails(why: str) -> str:
    return f"TLS fails ({why}): check the certificates of both sides"


# Tokens.


def wrong_token(at: str, token_file: str) -> str:
    """For a server at `at`."""
    return f"{at} does not know the token in {token_file}: ask the server's administrator for the right token"
