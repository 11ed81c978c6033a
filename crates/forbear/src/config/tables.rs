//! The tables of a file that are more than keys: hosts with their headers and endpoints, and groups.

use toml::de::DeValue;

use super::{
    CostSettings, Group, HostPattern, HostPatternError, HostSettings, Secret, SecretHeader,
    cost::COST,
    error::Place,
    given::Given,
    keys::{ENDPOINT, EndpointDraft, HOST, NO_VALUE},
    load::{Build, Doc, Entry, Table, in_order},
    source::Show,
};

impl Build {
    pub(super) fn hosts(&mut self, doc: &Doc, hosts: &Table<'_>) {
        for (key, value) in in_order(hosts) {
            let place = doc.place(key.span(), Show::NoTexts);
            let Some(at) = self.host(key.get_ref(), place.clone()) else { continue };
            let Some(table) = value.get_ref().as_table() else {
                let help = Some("write [hosts.\"NAME\"] in a line of its own, and its keys below".to_owned());
                self.problem(place, "a host's settings are a table".to_owned(), help);
                continue;
            };
            for (key, value) in in_order(table) {
                match key.get_ref().as_ref() {
                    "headers" => self.headers(doc, at, (key, value)),
                    "endpoints" => self.endpoints(doc, at, (key, value)),
                    "cost" => {
                        let Some(table) = value.get_ref().as_table() else {
                            let help = Some("write [hosts.\"NAME\".cost] in a line of its own".to_owned());
                            let place = doc.place(key.span(), Show::Marked);
                            self.problem(place, "`cost` is a table".to_owned(), help);
                            continue;
                        };
                        let full = format!("{}.cost", self.host_key(at));
                        self.cost(doc, table, ("hosts.NAME.cost", &full), |build| {
                            &mut build.draft.settings.hosts[at].1.cost
                        });
                    }
                    name => {
                        let full = format!("{}.{name}", self.host_key(at));
                        let Some(known) = HOST.iter().find(|k| k.name == name) else {
                            self.unknown(doc, &format!("hosts.NAME.{name}"), key.span());
                            continue;
                        };
                        let (place, origin) =
                            (doc.place(value.span(), Show::Marked), doc.origin(key.span().start));
                        self.set(
                            known,
                            |b| &mut b.draft.settings.hosts[at].1,
                            Given::File(value.get_ref()),
                            &full,
                            place,
                            origin,
                        );
                    }
                }
            }
        }
    }

    /// A table of what requests cost: its kind, and its full name.
    pub(super) fn cost(
        &mut self,
        doc: &Doc,
        table: &Table<'_>,
        (kind, full): (&str, &str),
        target: impl Fn(&mut Build) -> &mut CostSettings,
    ) {
        for (key, value) in in_order(table) {
            let name = key.get_ref().as_ref();
            let Some(known) = COST.iter().find(|known| known.name == name) else {
                self.unknown(doc, &format!("{kind}.{name}"), key.span());
                continue;
            };
            let (place, origin) = (doc.place(value.span(), Show::Marked), doc.origin(key.span().start));
            let full = format!("{full}.{name}");
            self.set(known, &target, Given::File(value.get_ref()), &full, place, origin);
        }
    }

    /// The index of a host's settings, made if it is new. A name that may hold a password is not repeated.
    pub(super) fn host(&mut self, name: &str, place: Place) -> Option<usize> {
        let pattern: HostPattern = match name.parse() {
            Ok(pattern) => pattern,
            Err(e) => {
                let help = "a host is written like \"api.example.com\", \"api.example.com:8443\" or \"*.example.com\"";
                self.problem(place, HostPatternError::to_string(&e), Some(help.to_owned()));
                return None;
            }
        };
        let hosts = &mut self.draft.settings.hosts;
        Some(hosts.iter().position(|(p, _)| *p == pattern).unwrap_or_else(|| {
            hosts.push((pattern, HostSettings::default()));
            hosts.len() - 1
        }))
    }

    pub(super) fn host_key(&self, at: usize) -> String {
        format!("hosts.\"{}\"", self.draft.settings.hosts[at].0)
    }

    fn headers(&mut self, doc: &Doc, at: usize, (key, value): Entry<'_, '_>) {
        let Some(table) = value.get_ref().as_table() else {
            let help = Some("write headers = { Authorization = \"Bearer ...\" }".to_owned());
            return self.problem(doc.place(key.span(), Show::Marked), "headers are a table".to_owned(), help);
        };
        for (key, value) in in_order(table) {
            let place = doc.place(key.span(), Show::Marked);
            let Ok(name) = http::HeaderName::from_bytes(key.get_ref().as_bytes()) else {
                self.problem(doc.place(key.span(), Show::NoTexts), "not a header name".to_owned(), None);
                continue;
            };
            if FRAMING.contains(&name.as_str()) {
                let message = format!("`{name}` is set by the connection itself, never by a configuration");
                self.problem(place, message, Some("remove the line".to_owned()));
                continue;
            }
            let Some(text) = value.get_ref().as_str() else {
                self.problem(
                    place,
                    "a header's value is a text".to_owned(),
                    Some("put it in quotes".to_owned()),
                );
                continue;
            };
            if http::HeaderValue::from_bytes(text.as_bytes()).is_err() {
                self.problem(place, NO_VALUE.to_owned(), None);
                continue;
            }
            let full = format!("{}.headers.{name}", self.host_key(at));
            let origin = doc.origin(key.span().start);
            if self.stands_twice(&full, &origin) {
                self.twice(place, &full);
                continue;
            }
            self.origins.insert(full, origin);
            let headers = &mut self.draft.settings.hosts[at].1.headers;
            headers.retain(|h| h.name != name);
            headers.push(SecretHeader { name, value: Secret::new(text.to_owned()) });
        }
    }

    fn endpoints(&mut self, doc: &Doc, at: usize, (key, value): Entry<'_, '_>) {
        let tables = match value.get_ref() {
            DeValue::Array(items) => {
                items.iter().map(|i| Some((i.span(), i.get_ref().as_table()?))).collect()
            }
            _ => None,
        };
        let Some(tables): Option<Vec<_>> = tables else {
            let help = Some("write [[hosts.\"NAME\".endpoints]] in a line of its own for each".to_owned());
            return self.problem(
                doc.place(key.span(), Show::Marked),
                "endpoints are a list of tables".to_owned(),
                help,
            );
        };
        for (span, table) in tables {
            let (mut draft, mut said, before) = (EndpointDraft::default(), Vec::new(), self.problems.len());
            for (key, value) in in_order(table) {
                let name = key.get_ref().as_ref();
                let Some(known) = ENDPOINT.iter().find(|k| k.name == name) else {
                    self.unknown(doc, &format!("hosts.NAME.endpoints.{name}"), key.span());
                    continue;
                };
                if let Err(message) = (known.set)(&mut draft, Given::File(value.get_ref())) {
                    let help = Some(format!("it takes {}", known.takes));
                    self.problem(doc.place(value.span(), Show::Marked), format!("{name}: {message}"), help);
                }
                said.push((known.name, doc.origin(key.span().start)));
            }
            let Some(endpoint) = draft.build() else {
                if self.problems.len() == before {
                    let help = Some("add match = \"/path/*\"".to_owned());
                    self.problem(
                        doc.place(span, Show::NoTexts),
                        "an endpoint needs a `match`".to_owned(),
                        help,
                    );
                }
                continue;
            };
            for (name, origin) in said {
                self.origins
                    .insert(format!("{}.endpoints.\"{}\".{name}", self.host_key(at), endpoint.name), origin);
            }
            let endpoints = &mut self.draft.settings.hosts[at].1.endpoints;
            match endpoints.iter_mut().find(|e| e.name == endpoint.name) {
                Some(old) => *old = endpoint,
                None => endpoints.push(endpoint),
            }
        }
    }

    pub(super) fn groups(&mut self, doc: &Doc, groups: &Table<'_>) {
        for (key, value) in in_order(groups) {
            let place = doc.place(value.span(), Show::Marked);
            let members = Given::File(value.get_ref()).texts().and_then(|names| {
                let read = |name: &str| name.parse().map_err(|e: HostPatternError| e.to_string());
                names.into_iter().map(read).collect::<Result<Vec<HostPattern>, _>>()
            });
            let members = match members {
                Ok(members) if members.is_empty() => Err("a group needs at least one host".to_owned()),
                other => other,
            };
            match members {
                Err(message) => {
                    let place = doc.place(value.span(), Show::NoTexts);
                    let help = Some("write NAME = [\"a.example\", \"*.b.example\"]".to_owned());
                    self.problem(place, message, help);
                }
                Ok(members) => {
                    let name = key.get_ref().to_string();
                    let groups = &mut self.draft.settings.groups;
                    groups.retain(|g| g.name != name);
                    let twice = groups.iter().find(|g| g.members.iter().any(|m| members.contains(m)));
                    if let Some(other) = twice {
                        let message = format!("a host of `{name}` is in the group `{}` too", other.name);
                        self.problem(
                            place,
                            message,
                            Some("a host counts in one group; put all of them into it".to_owned()),
                        );
                        continue;
                    }
                    self.places.insert("groups".to_owned(), doc.place(key.span(), Show::Marked));
                    self.origins.insert(format!("groups.{name}"), doc.origin(key.span().start));
                    groups.push(Group { name, members });
                }
            }
        }
    }
}

/// They belong to the framing of a message or to the connection; a fixed value would break both.
const FRAMING: &[&str] =
    &["host", "content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade"];
