//! Decides which requests are answered, and sets the headers of every answer.
//!
//! A browser lets any web page send requests to 127.0.0.1. This module detects and refuses them:
//!
//! - `Host` must be this page's own. A name that an attacker's DNS server maps to 127.0.0.1 (DNS
//!   rebinding) is a different `Host`.
//! - `Origin`, if there is one, must be this page's own. Browsers send it with every request that may
//!   change something, and it must be there for those.
//! - `Sec-Fetch-Site` must not name another site or another port of this host, except for a request
//!   for the document itself. The requesting site can neither read nor frame that document.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{Request, State as FromState};
use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// The values of `Host` that name this page.
#[derive(Clone, Debug)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    pub(super) fn of(address: SocketAddr) -> Hosts {
        let port = address.port();
        Hosts(vec![format!("127.0.0.1:{port}"), format!("localhost:{port}")])
    }

    /// The origin with which links to this page begin.
    pub(super) fn origin(&self) -> String {
        format!("http://{}", self.0[0])
    }

    fn has(&self, host: &str) -> bool {
        self.0.iter().any(|own| own.eq_ignore_ascii_case(host))
    }

    fn has_origin(&self, origin: &str) -> bool {
        origin.strip_prefix("http://").is_some_and(|host| self.has(host))
    }

    /// # Errors
    /// Why the request is refused.
    fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let only = |name: HeaderName| {
            let mut all = headers.get_all(name).iter();
            let first = all.next().map(|value| value.to_str().unwrap_or("?"));
            if all.next().is_some() { Some("?") } else { first }
        };
        let is_ours = only(header::HOST).is_some_and(|host| self.has(host));
        if !is_ours || uri.authority().is_some_and(|named| !self.has(named.as_str())) {
            let what = "the Host of the request is not this page; use the printed link";
            return Err(Refusal(StatusCode::MISDIRECTED_REQUEST, what));
        }
        let reads = method == Method::GET || method == Method::HEAD;
        let origin = only(header::ORIGIN);
        if origin.is_some_and(|origin| !self.has_origin(origin)) || (!reads && origin.is_none()) {
            return Err(Refusal(StatusCode::FORBIDDEN, "the request comes from another origin"));
        }
        let site = only(HeaderName::from_static("sec-fetch-site")).unwrap_or("none");
        let is_document = reads && matches!(uri.path(), "/" | "/enter");
        if !matches!(site, "same-origin" | "none") && !is_document {
            return Err(Refusal(StatusCode::FORBIDDEN, "the request comes from another site"));
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Refusal(StatusCode, &'static str);

/// Refuses requests that do not come from this page, and adds headers to every answer.
pub(super) async fn guard(
    FromState(hosts): FromState<Hosts>,
    request: Request,
    next: Next,
) -> Response {
    let checked = hosts.check(request.method(), request.uri(), request.headers());
    let mut response = match checked {
        Ok(()) => match tokio::time::timeout(PATIENCE, next.run(request)).await {
            Ok(response) => response,
            Err(_) => (StatusCode::REQUEST_TIMEOUT, "the request took too long\n").into_response(),
        },
        Err(Refusal(status, why)) => (status, format!("{why}\n")).into_response(),
    };
    for (name, value) in HEADERS {
        let headers = response.headers_mut();
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Time limit for receiving the body of a request and sending the answer; streams may last longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Headers of every answer.
pub(super) const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
         img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    // With `no-referrer`, browsers would send forms with the origin `null`.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: &str, uri: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let hosts = Hosts::of("127.0.0.1:8070".parse().unwrap());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        let method = method.parse().unwrap();
        hosts.check(&method, &uri.parse().unwrap(), &map).err().map(|refusal| refusal.0.as_u16())
    }

    const HOST: (&str, &str) = ("host", "127.0.0.1:8070");
    const OWN: (&str, &str) = ("origin", "http://127.0.0.1:8070");

    #[test]
    fn other_hosts_are_refused() {
        assert_eq!(check("GET", "/", &[HOST]), None);
        assert_eq!(check("GET", "/", &[("host", "LOCALHOST:8070")]), None);
        for host in ["evil.example:8070", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8070.evil", ""] {
            assert_eq!(check("GET", "/", &[("host", host)]), Some(421), "{host}");
        }
        assert_eq!(check("GET", "/", &[]), Some(421));
        assert_eq!(check("GET", "/", &[HOST, ("host", "evil.example")]), Some(421));
        assert_eq!(check("GET", "http://evil.example/", &[HOST]), Some(421));
    }

    #[test]
    fn other_origins_are_refused_and_changes_need_one() {
        assert_eq!(check("POST", "/set", &[HOST, OWN]), None);
        assert_eq!(check("POST", "/set", &[HOST]), Some(403));
        for origin in ["null", "https://127.0.0.1:8070", "http://127.0.0.1:81", "http://evil"] {
            for method in ["GET", "POST"] {
                assert_eq!(check(method, "/", &[HOST, ("origin", origin)]), Some(403), "{origin}");
            }
        }
        assert_eq!(check("POST", "/set", &[HOST, OWN, OWN]), Some(403));
    }

    #[test]
    fn other_sites_get_no_more_than_the_document() {
        for site in ["cross-site", "same-site", "nonsense"] {
            let fetch = ("sec-fetch-site", site);
            assert_eq!(check("GET", "/events", &[HOST, fetch]), Some(403));
            assert_eq!(check("POST", "/set", &[HOST, OWN, fetch]), Some(403));
            assert_eq!(check("GET", "/enter?code=1", &[HOST, fetch]), None);
        }
        assert_eq!(check("GET", "/events", &[HOST, ("sec-fetch-site", "same-origin")]), None);
    }
}
