//! What a node says once it is ready.

use serde_json::json;

use super::{Node, Urls};
use crate::config::Settings;
use crate::deployment::{BootstrapKeys, write_whole};
use crate::failure::Failure;
use crate::output;
use crate::roles::{Plan, Role};

impl Node {
    /// Tells people and programs that the node is ready, and how to talk to it.
    ///
    /// # Errors
    /// If the ready file cannot be written.
    pub(super) fn announce(
        &self,
        plan: &Plan<'_>,
        settings: &Settings,
        urls: &Urls,
    ) -> Result<(), Failure> {
        // A pipeline that was refused has nothing to announce: its reason is what people read.
        if self.counting.as_ref().is_some_and(|counting| !counting.is_running()) {
            return Ok(());
        }
        let keys = self.deployment.valid_bootstrap_keys();
        if let Some(path) = &plan.process.ready_file {
            let ready = json!({
                "url": urls.services,
                "admin": urls.admin,
                "writeKey": keys.write_key,
                "readToken": keys.read_token,
                "adminToken": keys.admin_token,
            });
            write_whole(path, &serde_json::to_vec(&ready)?, 0o600)?;
        }
        let dir = self.deployment.dir.display();
        let admin = &urls.admin;
        match (plan.role, &urls.services) {
            (Role::Node, Some(url)) => self.greet(plan, settings, url, admin, &keys),
            (_, Some(url)) => output::line(format!(
                "{} is up.\n\n  data folder   {dir}\n  service       {url}\n  metrics       \
                 {admin}/metrics\n",
                plan.role.name()
            )),
            (_, None) => output::line(format!(
                "{} is up.\n\n  data folder   {dir}\n  metrics       {admin}/metrics\n",
                plan.role.name()
            )),
        }
    }

    /// What a newcomer needs to go on.
    fn greet(
        &self,
        plan: &Plan<'_>,
        settings: &Settings,
        url: &str,
        admin: &str,
        keys: &BootstrapKeys,
    ) -> Result<(), Failure> {
        // Who started this binary by its path has no `tally` to call.
        let program = std::env::args().next().unwrap_or_else(|| "tally".to_owned());
        let wait_s = 60 + settings.pipeline.timing.watermark_delay_ms / 1_000;
        let demo = match plan.demo {
            Some(demo) => format!(
                "The demo sends {} events/s. The first top-K appears here in {wait_s} to {} s.",
                demo.demo_rate,
                wait_s + 60
            ),
            None => format!("A minute's counts are readable {wait_s} s after it began."),
        };
        output::line(format!(
            "Tally is up.\n\
             \n  data folder   {}\n  collector     {url}/v1/events\n  query API     {url}/v1/stats/top\n  \
             metrics       {admin}/metrics\n  write key     {}\n  read token    {}\n\
             \nSend an event:\n\n  curl -sS {url}/v1/events -H 'Authorization: Bearer {}' \\\n    \
             -H 'Content-Type: application/json' -d '{{\"events\":[{{\"eventId\":\"'$(cat \
             /proc/sys/kernel/random/uuid)'\",\n    \
             \"eventType\":\"page_view\",\"userId\":\"u1\",\"eventTime\":\"'$(date -u \
             +%Y-%m-%dT%H:%M:%SZ)'\",\"properties\":{{}}}}]}}'\n\
             \nAsk for the last hour:\n\n  {program} top --last 1h --url {url} --token {}\n\
             \n{demo} Ctrl-C stops the node; nothing is lost.\n",
            self.deployment.dir.display(),
            keys.write_key,
            keys.read_token,
            keys.write_key,
            keys.read_token,
        ))
    }
}
