//! The terminal front end that the `windlass` binary, its benchmarks and its demos share.
//!
//! - [`GlobalArgs`]: the options that every command has; [`duration`]: argument types
//! - [`ConfigPath`]: the config file, with values for these options; [`Origins`]: where their values come from
//! - [`Printer`]: the only code that writes to stdout and stderr; [`printable()`]: text of other clients, escaped
//! - [`Exit`]: the only code that knows exit codes; [`Failure`]: an error with advice and an exit code
//! - [`store`]: which store a command uses, and how it is opened
//! - [`OutputFile`]: a file that is written at the end
//! - [`Signals`]: the signals that end or reach a command
//!
//! This is not a library for other programs: it follows the command line and changes with it.

mod args;
mod config;
pub mod duration;
mod exit;
mod failure;
mod folders;
mod output_file;
mod printable;
mod printer;
#[cfg(feature = "redis")]
pub mod raw_redis;
mod settings;
mod signals;
pub mod store;

pub use args::GlobalArgs;
pub use config::ConfigPath;
pub use exit::Exit;
pub use failure::{Advice, Failure, quoted};
pub use output_file::OutputFile;
pub use printable::printable;
pub use printer::{ErrorAnswer, Printer, Tone, is_trouble, unwritten};
pub use rustix::process::Signal;
pub use settings::{Origin, Origins};
pub use signals::{Signals, catches, unless_interrupted};
