import base64, hashlib, hmac, json, os, pathlib, time

KEYS = pathlib.Path(os.environ.get("TOKEN_KEYS", "/var/run/agentcube/token"))


def verify(token, instance, now=None):
    """What the token says, a dict. Raises ValueError if it is not genuine, has expired, or is not for us."""
    encode = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    keys = {file.name[:-4]: file.read_bytes() for file in KEYS.glob("*.key")}
    version, key_id, payload, signature = (token.split(".") + [""] * 4)[:4]
    if len(token) > 4096 or version != "v1" or token.count(".") != 3 or key_id not in keys:
        raise ValueError("malformed, or signed with an unknown key")
    expected = hmac.new(keys[key_id], f"v1.{key_id}.{payload}".encode(), hashlib.sha256).digest()
    if not hmac.compare_digest(encode(expected).encode(), signature.encode()):
        raise ValueError("wrong signature")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    if claims["task"] != (KEYS / "task").read_text().strip() or claims["instance"] != instance:
        raise ValueError("for another Task or instance")
    if claims["exp"] <= (time.time() if now is None else now):
        raise ValueError("expired")
    return claims
