//! `windlass perm`: permissions of subjects on resources.

use std::collections::HashSet;
use std::io::{self, IsTerminal as _, Write as _};

use serde::Serialize;
use windlass::PermissionScale;
use windlass::{Coordinator, PermissionSpace};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, store};

use super::inventory;
use crate::args::{InventoryKind, PermCommand, PermDefineArgs, PermLevelArgs, PermWhoArgs};
use crate::humanize;

pub(super) async fn perm(
    command: PermCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let open = async |space: &str| store.permissions(space).open().await;
    match command {
        PermCommand::Ls(args) => {
            inventory::ls(&args, &[InventoryKind::Perm], global, printer).await
        }
        PermCommand::Define(args) => define(args, &store, printer).await,
        PermCommand::Set(args) => {
            let space = open(&args.space).await?;
            let before = space
                .set(&args.subject, &args.resource, &args.level)
                .await?;
            print_change(&args, "previous", before.name(), printer)
        }
        PermCommand::Grant(args) => {
            let space = open(&args.space).await?;
            let before = space
                .grant(&args.subject, &args.resource, &args.level)
                .await?;
            print_change(&args, "had", before.name(), printer)
        }
        PermCommand::Revoke(args) => {
            let space = open(&args.space).await?;
            let before = space
                .revoke(&args.subject, &args.resource, &args.level)
                .await?;
            print_change(&args, "had", before.name(), printer)
        }
        PermCommand::Get(args) => {
            let space = open(&args.space).await?;
            let level = space.get(&args.subject, &args.resource).await?;
            let (subject, resource) = (args.subject.as_str(), args.resource.as_str());
            let answer = PermissionAnswer::new(&args.space, subject, resource, level.name());
            printer.answer("found", &answer, &level);
            Ok(Exit::SUCCESS)
        }
        PermCommand::Check(args) => check(&args, &open(&args.space).await?, printer).await,
        PermCommand::List(args) => {
            let space = open(&args.space).await?;
            for (resource, level) in space.list(&args.subject).await? {
                let answer =
                    PermissionAnswer::new(&args.space, &args.subject, &resource, level.name());
                printer.answer("found", &answer, format_args!("{resource}: {level}"));
            }
            Ok(Exit::SUCCESS)
        }
        PermCommand::Clear(args) => {
            let cleared = open(&args.space).await?.clear(&args.subject).await?;
            let (outcome, text) = match cleared {
                true => ("cleared", format!("{}: permissions removed", args.subject)),
                false => ("not-found", format!("{}: no permissions", args.subject)),
            };
            let (space, subject) = (&args.space, &args.subject);
            printer.answer(
                outcome,
                &serde_json::json!({"space": space, "subject": subject, "cleared": cleared}),
                text,
            );
            Ok(if cleared { Exit::SUCCESS } else { Exit::NO })
        }
        PermCommand::Who(args) => who(&args, &open(&args.space).await?, printer).await,
        PermCommand::Stats(args) => stats(&args.space, &open(&args.space).await?, printer).await,
        PermCommand::Rm(args) => {
            let removed = store.permissions(&args.space).remove().await?;
            let (outcome, text) = match removed {
                true => ("removed", format!("{}: removed", args.space)),
                false => ("not-found", format!("{}: no such space", args.space)),
            };
            printer.answer(
                outcome,
                &serde_json::json!({"space": args.space, "removed": removed}),
                text,
            );
            Ok(if removed { Exit::SUCCESS } else { Exit::NO })
        }
    }
}

#[derive(Serialize)]
struct PermissionAnswer<'a> {
    space: &'a str,
    subject: &'a str,
    resource: &'a str,
    level: &'a str,
}

impl<'a> PermissionAnswer<'a> {
    fn new(
        space: &'a str,
        subject: &'a str,
        resource: &'a str,
        level: &'a str,
    ) -> PermissionAnswer<'a> {
        PermissionAnswer {
            space,
            subject,
            resource,
            level,
        }
    }
}

#[derive(Serialize)]
struct SpaceAnswer<'a> {
    space: &'a str,
    version: u64,
    scale: &'static str,
    levels: &'a [String],
    resources: usize,
    bits: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    subjects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_subject: Option<f64>,
}

async fn define(
    args: PermDefineArgs,
    store: &Coordinator,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut space = store.permissions(&args.space).resources(args.resources);
    space = match args.flags.is_empty() {
        true => space.levels(args.levels),
        false => space.flags(args.flags),
    };
    if let Some(bits) = args.bits {
        space = space.bits(bits);
    }
    let schema = space.define().await?.schema();
    let answer = SpaceAnswer {
        space: &args.space,
        version: schema.version,
        scale: scale_name(schema.scale),
        levels: &schema.levels,
        resources: schema.resources.len(),
        bits: schema.bits,
        subjects: None,
        bytes: None,
        bytes_per_subject: None,
    };
    let (resources, bits, version) = (answer.resources, answer.bits, answer.version);
    let text = format!(
        "{}: {} of {} each, version {version}",
        args.space,
        humanize::count(resources as u64, "resource"),
        humanize::count(bits, "bit"),
    );
    printer.answer("defined", &answer, text);
    Ok(Exit::SUCCESS)
}

fn scale_name(scale: PermissionScale) -> &'static str {
    match scale {
        PermissionScale::Ranked => "ranked",
        PermissionScale::Flags => "flags",
    }
}

fn print_change(
    args: &PermLevelArgs,
    key: &str,
    before: &str,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let answer = serde_json::json!({
        "space": args.space, "subject": args.subject, "resource": args.resource,
        "level": args.level, key: before,
    });
    let (subject, resource, level) = (&args.subject, &args.resource, &args.level);
    printer.answer(
        "changed",
        &answer,
        format_args!("{subject} on {resource}: {level} ({key}: {before})"),
    );
    Ok(Exit::SUCCESS)
}

async fn check(
    args: &PermLevelArgs,
    space: &PermissionSpace,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let (subject, resource, level) = (&args.subject, &args.resource, &args.level);
    let allowed = space.check(subject, resource, level).await?;
    let answer = serde_json::json!({
        "space": args.space, "subject": subject, "resource": resource,
        "level": level, "allowed": allowed,
    });
    let (outcome, word) = match allowed {
        true => ("allowed", "yes"),
        false => ("denied", "no"),
    };
    printer.answer(outcome, &answer, word);
    Ok(if allowed { Exit::SUCCESS } else { Exit::NO })
}

async fn who(
    args: &PermWhoArgs,
    space: &PermissionSpace,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let shown = printer.is_watched() && io::stderr().is_terminal();
    let progress = |text: std::fmt::Arguments<'_>| {
        if shown {
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
        }
    };
    let (mut scan, mut found) = (space.scan(), HashSet::new());
    while let Some(page) = scan.next_holders(&args.resource, &args.level).await? {
        progress(format_args!(""));
        for (subject, level) in page.holders {
            let answer = PermissionAnswer::new(&args.space, &subject, &args.resource, level.name());
            if !found.contains(&subject) {
                printer.answer("found", &answer, format_args!("{subject}: {level}"));
            }
            found.insert(subject);
        }
        progress(format_args!("… {:.0} %", page.progress * 100.0));
    }
    progress(format_args!(""));
    Ok(match found.is_empty() {
        true => Exit::NO,
        false => Exit::SUCCESS,
    })
}

async fn stats(name: &str, space: &PermissionSpace, printer: &Printer) -> Result<Exit, Failure> {
    let (schema, stats) = (space.schema(), space.stats().await?);
    let each = stats.bytes as f64 / stats.subjects.max(1) as f64;
    let answer = SpaceAnswer {
        space: name,
        version: schema.version,
        scale: scale_name(schema.scale),
        levels: &schema.levels,
        resources: schema.resources.len(),
        bits: schema.bits,
        subjects: Some(stats.subjects),
        bytes: Some(stats.bytes),
        bytes_per_subject: Some((each * 10.0).round() / 10.0),
    };
    let text = format!(
        "{name}: {}, {} ({each:.1} each); {} of {}",
        humanize::count(stats.subjects, "subject"),
        humanize::count(stats.bytes, "byte"),
        humanize::count(schema.resources.len() as u64, "resource"),
        humanize::count(schema.bits, "bit")
    );
    printer.answer("found", &answer, text);
    Ok(Exit::SUCCESS)
}
