//! `windlass postgres`

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum PostgresCommand {
    /// Print the SQL that creates or updates the tables and functions of a postgres:// store
    Migrations(MigrationsArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "\
The first client that connects creates the schema by itself if its role may. Run the migrations as
an administrator instead if it may not, and grant the role the use of the schema:

  windlass postgres migrations | psql -1 -v ON_ERROR_STOP=1 shop
  psql -c 'GRANT USAGE ON SCHEMA windlass TO app' shop")]
pub(crate) struct MigrationsArgs {
    /// Schema to create, as in ?schema= of the store URL
    #[arg(long, value_name = "NAME", default_value = windlass::postgres::DEFAULT_SCHEMA)]
    pub(crate) schema: String,

    /// Version that the schema has, to print only what is newer [default: there is no schema]
    #[arg(long, value_name = "VERSION")]
    pub(crate) from: Option<u32>,
}
