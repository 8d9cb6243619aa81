//! The client against a small service that answers what it is told to: what it tries again, what it gives up on, and when.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::http_server::{json as answer_json, serve};
use crate::runner::{Runner, TRIES};

const ID: &str = "bld_0123456789abcdef0123456789abcdef";
const AMPLE: Duration = Duration::from_secs(120);
/// Time for a few attempts.
const SHORT: Duration = Duration::from_millis(300);

/// A service with a list of answers; after the last of them it never answers again.
struct Fake {
    settings: Settings,
    asked: Arc<Mutex<Vec<String>>>,
    _stop: DropGuard,
}

impl Fake {
    async fn start(answers: Vec<(u16, Value)>, limit: Duration) -> Fake {
        Fake::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), answers, limit)
    }

    fn on(listener: TcpListener, answers: Vec<(u16, Value)>, limit: Duration) -> Fake {
        let address = listener.local_addr().unwrap().to_string();
        let (stop, asked) = (CancellationToken::new(), Arc::new(Mutex::new(Vec::new())));
        let (answers, noted) = (Arc::new(Mutex::new(VecDeque::from(answers))), asked.clone());
        let handle = move |request: Request<hyper::body::Incoming>| {
            noted.lock().push(format!("{} {}", request.method(), request.uri().path()));
            let next = answers.lock().pop_front();
            async move {
                match next {
                    Some((status, value)) => answer_json(StatusCode::from_u16(status).unwrap(), &value),
                    None => std::future::pending().await,
                }
            }
        };
        tokio::spawn(serve(listener, handle, stop.clone()));
        Fake { settings: settings(&address, limit), asked, _stop: stop.drop_guard() }
    }

    fn asked(&self) -> usize {
        self.asked.lock().len()
    }

    fn orders(&self) -> usize {
        self.asked.lock().iter().filter(|asked| **asked == format!("POST {}", contract::BUILDS)).count()
    }

    fn runner(&self) -> Runner {
        let client = kube::Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap()));
        Runner { client: client.unwrap(), settings: self.settings.clone() }
    }
}

fn settings(address: &str, limit: Duration) -> Settings {
    Settings {
        namespace: "team".into(),
        name: "tasks".into(),
        spec_hash: String::new(),
        bundle: "fi-tasks".into(),
        job: "job".into(),
        build_service: format!("http://{address}/"),
        token: "secret".into(),
        api: None,
        build_limit: limit,
        stale_grace: SHORT,
    }
}

fn build(status: &str) -> Value {
    json!({ "buildId": ID, "status": status })
}

fn whole() -> Vec<BundleFile> {
    files::ALL.iter().map(|(path, kind)| files::file(path, kind, path.as_bytes())).collect()
}

fn given(files: &[BundleFile]) -> (u16, Value) {
    (200, json!({ "buildId": ID, "files": files }))
}

fn gone() -> (u16, Value) {
    (404, json!({ "message": "there is no such build: begin it again" }))
}

/// The whole way of a runner from manifest to files.
async fn build_by(fake: &Fake) -> Result<Vec<BundleFile>, Error> {
    fake.runner().build(&json!({ "name": "tasks" }), "sha256:0", &|_| std::future::ready(())).await
}

#[tokio::test]
async fn it_comes_again_when_the_service_is_busy() {
    let full = || (503, json!({ "message": "too many builds wait: come again" }));
    let others = [(429, json!({})), (500, json!({})), (408, json!({}))];
    let mut answers = vec![full(), full()];
    answers.extend(others);
    answers.push((202, build("PENDING")));
    let fake = Fake::start(answers, AMPLE).await;
    let id = Builds::new(&fake.settings).begin(&json!({}), "sha256:0").await.unwrap();
    assert_eq!((id.as_str(), fake.asked(), fake.orders()), (ID, 6, 6));
}

#[tokio::test]
async fn it_comes_again_when_nobody_listens() {
    // Nobody else gets a port that is bound, and nobody listens there yet.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let settings = settings(&socket.local_addr().unwrap().to_string(), AMPLE);
    let builds = Builds::new(&settings);
    let first = builds.once(&Method::GET, contract::BUILDS, None).await.unwrap();
    assert!(matches!(&first, Answer::Later(why) if why.contains("refused")));
    let listening = async {
        tokio::task::yield_now().await;
        Fake::on(socket.listen(8).unwrap(), vec![(202, build("PENDING"))], AMPLE)
    };
    let (manifest, begun) = (json!({}), "sha256:0");
    let (id, _fake) = tokio::join!(builds.begin(&manifest, begun), listening);
    assert_eq!(id.unwrap(), ID);
}

#[tokio::test]
async fn its_deadline_holds_whatever_the_service_does() {
    let busy = || vec![(503, json!({ "message": "come again" })); 100];
    let pending = || vec![(200, build("PENDING")); 100];
    for (answers, says) in
        [(busy(), "503 come again"), (pending(), "the build is not done"), (vec![], "it does not answer")]
    {
        let fake = Fake::start(answers, SHORT).await;
        let waiting = async { Builds::new(&fake.settings).wait(ID).await };
        let error = tokio::time::timeout(AMPLE, waiting).await.expect("it ends").unwrap_err();
        assert!(matches!(&error, Error::Service(why) if why.contains("not done after")), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!((error.code(), error.failure().is_final), (1, false));
    }
}

#[tokio::test]
async fn a_build_that_is_forgotten_is_begun_again() {
    let done = || (200, build("SUCCEEDED"));
    let order = || (202, build("PENDING"));
    // Forgotten while it waits, then when its files are fetched.
    let answers = vec![order(), gone(), order(), done(), gone(), order(), done(), given(&whole())];
    let fake = Fake::start(answers, AMPLE).await;
    assert_eq!(build_by(&fake).await.unwrap(), whole());
    assert_eq!((fake.orders(), fake.asked()), (3, 8));
    // A service that always forgets is not asked for ever.
    let answers = (0..2 * TRIES).flat_map(|_| [order(), gone()]).collect();
    let fake = Fake::start(answers, AMPLE).await;
    let error = build_by(&fake).await.unwrap_err();
    assert!(matches!(&error, Error::Service(why) if why.contains("forgets")), "{error}");
    assert_eq!(fake.orders(), TRIES);
}

#[tokio::test]
async fn what_does_not_fit_its_digest_is_not_taken() {
    let mut spoilt = whole();
    spoilt[0].content = files::file(files::MODULE, "", b"INDEX.js").content;
    let mut short = whole();
    short.pop();
    for (files, fault) in [
        (spoilt, files::Fault::Digest(files::MODULE.into())),
        (short, files::Fault::Missing(files::MANIFEST)),
    ] {
        let fake = Fake::start(vec![given(&files)], AMPLE).await;
        let error = Builds::new(&fake.settings).files(ID).await.unwrap_err();
        assert!(matches!(&error, Error::Files(found) if *found == fault), "{error:?}");
        assert_eq!((error.code(), error.failure().reason.as_str()), (1, "DigestMismatch"));
    }
}

#[tokio::test]
async fn refusals_and_failures_are_told_and_end_it() {
    let fake = Fake::start(vec![(400, json!({ "message": "no path" }))], AMPLE).await;
    let error = build_by(&fake).await.unwrap_err();
    assert!(matches!(&error, Error::Refused(why) if why == "400 no path"), "{error}");
    assert_eq!((error.code(), fake.asked()), (4, 1));
    for (is_final, code) in [(true, 4), (false, 1)] {
        let failed = json!({ "buildId": ID, "status": "FAILED", "reason": "BundleTooLarge", "message": "too much", "final": is_final });
        // Later, or at once: what cannot even begin is not remembered by the service.
        let later = vec![(202, build("PENDING")), (200, failed.clone())];
        for answers in [later, vec![(202, failed)]] {
            let (fake, asked) = (Fake::start(answers.clone(), AMPLE).await, answers.len());
            let error = build_by(&fake).await.unwrap_err();
            assert_eq!((error.code(), error.failure().reason.as_str()), (code, "BundleTooLarge"));
            assert!(error.to_string().contains("too much"), "{error}");
            assert_eq!(fake.asked(), asked);
        }
    }
}
