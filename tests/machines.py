"""Machines that ask for tokens, and the servers they ask; no sockets."""

from typing import Any

from authorization_server import AuthorizationServer, Client
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt_oracle import sign
from oauth_wire import Wire

from callboard.client.oauth.grants import ClientCredentials, EnterpriseManaged, Machine

ID, SECRET = "desk:1 é", "s3cr3t:%/+ ü"
IDP_SECRET = "idp-s3cr3t"
PLATFORM = ec.generate_private_key(ec.SECP256R1())
KEYS: dict[str, Any] = {
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "RS256": rsa.generate_private_key(65537, 2048),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}


def pem(key: Any) -> str:
    made: bytes = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.decode()


def make_wire(method: str = "client_secret_basic", **options: Any) -> Wire:
    """An authorization server that knows one client."""
    server = AuthorizationServer(auth_methods=(method,), dcr=False)
    server.clients[ID] = Client(ID, SECRET if method.startswith("client_secret") else None, method=method)
    return Wire(server, **options)


def bound(wire: Wire, auth: Machine) -> Any:
    auth.bind(wire.protected.url, wire.fetch)
    return auth


def credentials(wire: Wire, **options: Any) -> ClientCredentials:
    made: ClientCredentials = bound(wire, ClientCredentials(ID, SECRET, clock=wire.clock, **options))
    return made


def asked(wire: Wire) -> list[dict[str, str]]:
    """Forms that came to the token endpoint."""
    return [request.form for request in wire.authorization.sent("token")]


def managed(wire: Wire, idp: AuthorizationServer, **options: Any) -> EnterpriseManaged:
    given: dict[str, Any] = {
        "subject_token": idp.identity_token("idp-desk"),
        "idp_client_id": "idp-desk",
        "idp_client_secret": IDP_SECRET,
        "idp_token_endpoint": idp.url("token"),
        **options,
    }
    made: EnterpriseManaged = bound(wire, EnterpriseManaged(ID, SECRET, clock=wire.clock, **given))
    return made


def with_idp() -> tuple[Wire, AuthorizationServer]:
    wire, idp = make_wire(), AuthorizationServer(auth_methods=("client_secret_basic",), issuer_path="/org")
    wire.add(idp, "https://idp.example")
    idp.clients["idp-desk"] = Client("idp-desk", IDP_SECRET, method="client_secret_basic")
    idp.resources = {wire.protected.url}
    wire.authorization.trusted = {idp.issuer: idp.public_key}
    return wire, idp


def vouched(wire: Wire, **changes: Any) -> str:
    """An assertion of the platform's."""
    wire.authorization.trusted["https://platform.example"] = PLATFORM.public_key()
    wire.now += 1
    claims = {
        "iss": "https://platform.example", "sub": "job-7", "aud": wire.authorization.url("token"), "iat": int(wire.now),
        "exp": int(wire.now) + 300, "jti": f"j{wire.now}", **changes,
    }  # fmt: skip
    return sign({"typ": "JWT", "alg": "ES256"}, claims, PLATFORM)
