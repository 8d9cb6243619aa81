//! Login and logout: a token is shown to the API server, and kept when that knows it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, SET_COOKIE};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use parking_lot::Mutex;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{self, Answer};
use crate::server::State;
use crate::session::authorization;

/// The longest token.
const TOKEN_LIMIT: usize = 16 << 10;
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// So many tokens may be wrong in a while.
const MOST_MISTAKES: u32 = 20;
const WHILE: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct Login {
    token: String,
}

/// Slows down whoever guesses.
#[derive(Default)]
pub(crate) struct Mistakes(Mutex<Option<(Instant, u32)>>);

impl Mistakes {
    fn too_many(&self) -> bool {
        self.0.lock().is_some_and(|(since, count)| since.elapsed() < WHILE && count >= MOST_MISTAKES)
    }

    fn note(&self) {
        let mut held = self.0.lock();
        *held = match *held {
            Some((since, count)) if since.elapsed() < WHILE => Some((since, count + 1)),
            _ => Some((Instant::now(), 1)),
        };
    }
}

/// What the login asks for and gives: `POST` logs in, `GET` says who is, `DELETE` logs out.
pub(crate) async fn answer(state: &State, method: &Method, headers: &HeaderMap, body: Bytes) -> Answer {
    match *method {
        Method::POST => log_in(state, &body).await,
        Method::GET => match state.sessions.proven(headers) {
            Some(session) => {
                let who = json!({ "user": session.user, "version": state.options.version });
                answer::json(StatusCode::OK, &who)
            }
            None => answer::refuse(StatusCode::UNAUTHORIZED, "nobody is logged in"),
        },
        Method::DELETE => {
            if state.sessions.proven(headers).is_some() {
                state.sessions.end(headers);
            }
            let mut answer = answer::json(StatusCode::OK, &json!({}));
            answer.headers_mut().extend(state.sessions.set_cookie("").map(|value| (SET_COOKIE, value)));
            answer
        }
        _ => answer::refuse(StatusCode::METHOD_NOT_ALLOWED, "POST logs in, DELETE logs out"),
    }
}

async fn log_in(state: &State, body: &[u8]) -> Answer {
    if state.mistakes.too_many() {
        return answer::refuse(StatusCode::TOO_MANY_REQUESTS, "too many tokens were wrong: wait 10 seconds");
    }
    if body.len() > TOKEN_LIMIT {
        return answer::refuse(StatusCode::PAYLOAD_TOO_LARGE, "no token is that long");
    }
    // Why it cannot be read is not said: the reason could quote the token.
    let Ok(Login { token }) = serde_json::from_slice(body) else {
        return answer::refuse(StatusCode::BAD_REQUEST, "send {\"token\": \"…\"}");
    };
    let token = SecretString::from(token);
    let Some(header) = authorization(&token) else {
        return answer::refuse(StatusCode::BAD_REQUEST, "this is no token: it has characters that none has");
    };
    match known(&state.options.api, header.clone()).await {
        Known::Yes => {}
        Known::No => {
            state.mistakes.note();
            return answer::refuse(StatusCode::UNAUTHORIZED, "the API server does not know this token");
        }
        Known::Unclear(why) => {
            tracing::warn!(error = %why, "the API server cannot be asked about a login");
            let message = "the API server gives no answer: is it running?";
            return answer::refuse(StatusCode::BAD_GATEWAY, message);
        }
    }
    let user = name(&state.options.api, header).await;
    let opened = state.sessions.open(token, user.clone());
    let welcome = json!({ "proof": opened.proof, "user": user, "version": state.options.version });
    let mut answer = answer::json(StatusCode::OK, &welcome);
    answer.headers_mut().extend(state.sessions.set_cookie(&opened.cookie).map(|value| (SET_COOKIE, value)));
    answer
}

enum Known {
    Yes,
    No,
    Unclear(String),
}

async fn known(api: &kube::Client, authorization: HeaderValue) -> Known {
    let request = Request::get("/api").header(AUTHORIZATION, authorization);
    let Ok(request) = request.body(kube::client::Body::empty()) else {
        return Known::No;
    };
    match tokio::time::timeout(ANSWER_LIMIT, api.send(request)).await {
        Ok(Ok(answer)) if answer.status() == StatusCode::UNAUTHORIZED => Known::No,
        // Who may not even look at the list of versions is known all the same.
        Ok(Ok(answer)) if answer.status().is_success() || answer.status() == StatusCode::FORBIDDEN => {
            Known::Yes
        }
        Ok(Ok(answer)) => Known::Unclear(format!("it answers {}", answer.status())),
        Ok(Err(error)) => Known::Unclear(error.to_string()),
        Err(_) => Known::Unclear("it takes too long".to_owned()),
    }
}

/// What the API server calls the user, where it tells.
async fn name(api: &kube::Client, authorization: HeaderValue) -> Option<String> {
    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
    let request = Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header(AUTHORIZATION, authorization)
        .header(CONTENT_TYPE, "application/json")
        .body(kube::client::Body::from(review.to_string().into_bytes()))
        .ok()?;
    let answer = tokio::time::timeout(ANSWER_LIMIT, api.send(request)).await.ok()?.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    let body = Limited::new(answer.into_body(), 1 << 20).collect().await.ok()?.to_bytes();
    let review: Value = serde_json::from_slice(&body).ok()?;
    review["status"]["userInfo"]["username"].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_is_slowed_down() {
        let mistakes = Mistakes::default();
        for _ in 0..MOST_MISTAKES {
            assert!(!mistakes.too_many());
            mistakes.note();
        }
        assert!(mistakes.too_many());
    }
}
