"""Messages about bad certificate files, and about TLS errors between a server and an agent or an operator."""

# Files.


def bad_file(flag: str, path: str, why: str) -> str:
    return f"{flag} {path}: {why}"


def unreadable(flag: str, path: str, why: str) -> str:
    return f"{flag} {path}: {why}: name a PEM file that this process can read"


def bad_pair(cert_flag: str, cert: str, key_flag: str, key: str, why: str) -> str:
    return f"{cert_flag} {cert}, {key_flag} {key}: {why}"


NO_KEY = "there is no private key in it (PEM)"
NO_CERTIFICATE = "there is no certificate in it (PEM)"


def other_key(cert_flag: str, cert: str, key_flag: str, key: str) -> str:
    return f"{key_flag} {key} does not belong to {cert_flag} {cert}"


def encrypted_key(flag: str, key: str) -> str:
    return f"{flag} {key} is encrypted, and its passphrase cannot be asked for: openssl pkey -in {key}"


# The server's certificate.

NOT_YET_VALID = "the server's certificate is not valid yet: compare the clocks"
EXPIRED = "the server's certificate has expired"


def other_host(host: str) -> str:
    return f"the server's certificate is not for {host}: name it in --endpoint as the certificate does"


def other_authority(flag: str, ca: str) -> str:
    return f"the server's certificate is from no authority in {flag} {ca}"


def bad_certificate(why: str) -> str:
    return f"the server's certificate is no good: {why}"


# The connection.


def no_tls(ca_flag: str) -> str:
    return f"the server there speaks no TLS: leave {ca_flag} out, or start it with --tls-cert and --tls-key"


def asks_for_certificate(cert_flag: str, key_flag: str) -> str:
    return f"the server asks for a certificate of this node: give {cert_flag} and {key_flag}"


def refused(why: str, cert_flag: str) -> str:
    return f"the server refuses this node's TLS ({why}): see {cert_flag}"


def fails(why: str) -> str:
    return f"TLS fails: {why}"
