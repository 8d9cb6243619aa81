//! Controllers and agents over gRPC: what one asks, the other answers.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use agentcube_api::middleware::group::{
    ActiveHighAvailability, PostUpgradeVerify, PreUpgradeCheck, RoleDetection, RoleFacts,
};
use agentcube_api::middleware::parts::Scenario;
use agentcube_middleware::agents::{Agents, Place, Token};
use agentcube_middleware::remote::{Dial, Remote};
use agentcube_middleware_agent::{Agent, Options, Settings};
use futures_util::future::BoxFuture;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Whatever address a Pod has, it is here.
struct Here(u16);

impl Dial for Here {
    fn dial(&self, _: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        Box::pin(TcpStream::connect(("127.0.0.1", self.0)))
    }
}

fn place(token: Option<&str>, address: Option<&str>) -> Place {
    Place {
        namespace: "here".into(),
        pod: "p-0".into(),
        uid: "u".into(),
        address: address.map(str::to_owned),
        token: token.map(|token| Token::new(token.into())),
    }
}

#[tokio::test]
async fn what_controllers_ask_agents_answer() {
    let settings = Settings {
        reload_command: Some("true".into()),
        health_command: Some("sh -c 'echo lags behind >&2; exit 1'".into()),
        group_order_command: Some("sh -c 'echo concurrent'".into()),
        ..Settings::default()
    };
    let words = ["sleep", "1000"].map(str::to_owned).to_vec();
    let agent = Agent::new(Options { words, settings, settings_file: None, token: "secret".into() });
    let (processes, tools) =
        (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = tools.local_addr().unwrap().port();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(agent.run(processes, tools, shutdown.clone()));
    let remote = Remote { port: 50052, dial: Arc::new(Here(port)) };
    let right = place(Some("secret"), Some("10.0.0.1"));

    let pods = ["p-0".to_owned(), "p-1".to_owned()];
    let order = remote.pod_order(&right, "g", Scenario::Upgrade, &pods).await.unwrap();
    assert_eq!((order.names, order.concurrent), (vec!["p-1".to_owned(), "p-0".to_owned()], false));
    let order = remote.group_order(&right, "c", Scenario::Update, &pods).await.unwrap();
    assert!(order.concurrent);
    let detection = RoleDetection { command: "echo master".into(), ..RoleDetection::default() };
    let role = remote.role(&right, &detection).await.unwrap();
    assert_eq!((role.name.as_str(), role.leader), ("master", true));
    let facts = RoleFacts {
        position: Some(r"at (\d+)".into()),
        follows: Some(r"after (\S+)".into()),
        ..RoleFacts::default()
    };
    for (command, follows) in
        [("echo slave at 7 after 10.0.0.2", Some("10.0.0.2")), ("echo slave at 7 after 127.0.0.1", None)]
    {
        let detection =
            RoleDetection { command: command.into(), facts: Some(facts.clone()), ..RoleDetection::default() };
        let role = remote.role(&right, &detection).await.unwrap();
        assert_eq!((role.position, role.follows.as_deref(), role.leader), (Some(7), follows, false));
    }
    remote.tell(&right, "test $(LEADER)-$(SELF) = 10.0.0.9-10.0.0.1", "10.0.0.9").await.unwrap();
    let unknown = remote.tell(&right, "echo $(LEADER)", "").await.unwrap_err();
    assert!(unknown.contains("$(LEADER) stands for nothing here"), "{unknown}");
    assert!(!remote.reload(&right, &[]).await.unwrap());
    let lags = remote.check(&right, &PreUpgradeCheck::default()).await.unwrap_err();
    assert!(lags.contains("lags behind"), "{lags}");
    let mut verify = PostUpgradeVerify { command: Some("echo PONG".into()), ..PostUpgradeVerify::default() };
    verify.expected = Some("PONG".into());
    remote.verify(&right, &verify).await.unwrap();
    verify.expected = Some("PING".into());
    assert!(remote.verify(&right, &verify).await.unwrap_err().contains("PING was expected"));
    let how =
        ActiveHighAvailability { failover_command: "false".into(), ..ActiveHighAvailability::default() };
    assert!(remote.failover(&right, Some(&how), None).await.unwrap_err().contains("exit code 1"));

    let wrong = place(Some("wrong"), Some("10.0.0.1"));
    assert!(remote.reload(&wrong, &[]).await.unwrap_err().contains("Unauthenticated"));
    assert!(remote.reload(&place(None, Some("10.0.0.1")), &[]).await.unwrap_err().contains("Secret"));
    assert_eq!(remote.reload(&place(Some("secret"), None), &[]).await.unwrap_err(), "it has no address yet");
    let nobody = Remote { port: 50052, dial: Arc::new(Here(1)) };
    assert_eq!(nobody.reload(&right, &[]).await.unwrap_err(), "nobody answers at 10.0.0.1:50052");

    remote.stop(&right).await.unwrap();
    shutdown.cancel();
    assert_eq!(running.await.unwrap().unwrap(), 0);
}
