//! `windlass config`: the settings that apply, and where they come from.

use serde::Serialize;
use windlass::Options;
use windlass_term::{Advice, ConfigPath, Exit, Failure, GlobalArgs, Origin, Printer, store};

use super::holders::print_table;
use crate::args::{ConfigArgs, ConfigCommand};
use crate::humanize;

pub(super) fn config(
    args: &ConfigArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match args.command {
        Some(ConfigCommand::Path) => path(printer),
        None => show(global, printer),
    }
}

#[derive(Serialize)]
struct PathAnswer<'a> {
    path: &'a str,
    exists: bool,
}

fn path(printer: &Printer) -> Result<Exit, Failure> {
    let Some(ConfigPath { path, .. }) = ConfigPath::find()? else {
        return Err(Failure::usage(
            "there is no home directory for the config file",
            Advice::Hint("name a file with WINDLASS_CONFIG".into()),
        ));
    };
    let exists = path.exists();
    let path = &path.to_string_lossy();
    let outcome = if exists { "found" } else { "not-found" };
    printer.answer(outcome, &PathAnswer { path, exists }, path);
    Ok(Exit::SUCCESS)
}

/// One setting.
#[derive(Serialize)]
struct SettingAnswer<'a> {
    setting: &'a str,
    value: Option<String>,
    /// The option or the variable, or the line of the config file.
    from: Option<String>,
}

fn show(global: &GlobalArgs, printer: &Printer) -> Result<Exit, Failure> {
    // Contradictions are reported, as by the commands that use the store.
    store::check(global)?;
    let origins = &global.origins;
    let given = |value: Option<&str>| value.filter(|text| !text.is_empty()).map(str::to_owned);
    let file = global
        .store_file
        .as_deref()
        .map(|path| path.to_string_lossy());
    let uses_file = store::uses_file(global);
    let timeout = global.call_timeout.unwrap_or(Options::DEFAULT_CALL_TIMEOUT);
    let color = global.color.to_string();
    let rows = [
        ("profile", given(global.profile.as_deref()), origins.profile),
        (
            "store",
            store::shown_url(global),
            match uses_file {
                true => origins.store_file,
                false => origins.store,
            },
        ),
        (
            "store-file",
            file.filter(|_| uses_file).map(Into::into),
            origins.store_file,
        ),
        (
            "namespace",
            given(global.namespace.as_deref()),
            origins.namespace,
        ),
        (
            "call-timeout",
            Some(humanize::duration(timeout)),
            origins.call_timeout,
        ),
        ("color", Some(color), origins.color),
    ];
    let mut table = Vec::new();
    for (setting, value, origin) in rows {
        let option = match (setting, uses_file) {
            ("store", true) => "store-file",
            _ => setting,
        };
        let (outcome, from) = origin_text(origin, option, global);
        if printer.is_json() {
            let answer = SettingAnswer {
                setting,
                value,
                from,
            };
            printer.answer(outcome, &answer, "");
        } else {
            let value = value.unwrap_or_else(|| "-".into());
            let from = from.unwrap_or_else(|| "default".into());
            table.push([setting.to_owned(), value, from]);
        }
    }
    if !printer.is_json() {
        print_table(["SETTING", "VALUE", "FROM"], table, printer);
    }
    Ok(Exit::SUCCESS)
}

/// The kind of the origin, and which option, variable or line it is.
fn origin_text(
    origin: Origin,
    option: &str,
    global: &GlobalArgs,
) -> (&'static str, Option<String>) {
    let line = |line: usize| {
        let path = global.origins.config.as_deref().unwrap_or("".as_ref());
        format!("{}:{line}", path.display())
    };
    match origin {
        Origin::Option => ("option", Some(format!("--{option}"))),
        Origin::Environment => {
            let variable = option.replace('-', "_").to_uppercase();
            ("environment", Some(format!("WINDLASS_{variable}")))
        }
        Origin::Profile(at) => ("profile", Some(line(at))),
        Origin::File(at) => ("file", Some(line(at))),
        Origin::Default => ("default", None),
    }
}
