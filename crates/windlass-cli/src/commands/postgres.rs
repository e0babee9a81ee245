//! `windlass postgres`: the SQL of the PostgreSQL store.

use windlass_term::{Exit, Failure, Printer};

use crate::args::PostgresCommand;

pub(super) fn postgres(command: &PostgresCommand, printer: &Printer) -> Result<Exit, Failure> {
    let PostgresCommand::Migrations(args) = command;
    let sql = windlass::postgres::migrations(&args.schema, args.from)?;
    printer.out(sql.trim_end());
    Ok(Exit::SUCCESS)
}
