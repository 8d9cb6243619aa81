use agentcube_api::agentcube::security::AuthenticationSpec;
use serde_json::json;

use super::*;

fn authentication() -> AuthenticationSpec {
    let provider = |name: &str, header: &str| {
        json!({ "name": name, "issuer": name, "audiences": ["us"], "remoteJWKS": { "uri": "http://127.0.0.1:1/" },
            "claimToHeaders": [{ "claim": "sub", "header": header }] })
    };
    serde_json::from_value(json!({
        "jwt": { "providers": [provider("a", "X-User"), provider("b", "X-Other")] },
        "extAuth": { "http": { "backendRef": { "name": "auth", "port": 80 }, "headersToBackend": ["X-Badge"] } },
    }))
    .unwrap()
}

#[test]
fn the_headers_of_a_policy_are_those_of_all_its_parts() {
    assert_eq!(identity(&authentication()), ["x-user", "x-other", "x-badge", "x-agentcube-subject"]);
}

#[test]
fn no_claim_stands_where_others_are_believed() {
    for name in [
        "Host",
        "x-reserved-token",
        "X_Reserved_Token",
        "x_reserved-token",
        "Mcp-Session-Id",
        "mcp_session_id",
        "X-Forwarded-For",
        "x_gateway_destination_endpoint",
        "X-Request-ID",
        "Content-Length",
        "Connection",
    ] {
        assert!(settable(name).is_err(), "{name}");
    }
    for name in ["X-User-ID", "Authorization", "x_user", "x-tenant-id"] {
        assert!(settable(name).is_ok(), "{name}");
    }
    assert!(settable("a b").is_err() && settable("").is_err());
}

#[test]
fn a_guard_that_knows_no_policy_says_so() {
    let lost = Guard::closed("its TaskGateway is not there");
    assert!(matches!(lost.security(), Some(Verdict::Unknown(_))));
    assert!(matches!(lost.rate_limits(), Some(Verdict::Unknown(_))));
    assert!(lost.is_lost().is_some());
    let open = Guard::default();
    assert_eq!((open.security(), open.rate_limits(), open.is_lost()), (None, None, None));
}
