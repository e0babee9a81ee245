//! Permissions: who may do what with what, in a few bits each.

mod removal;
mod scan;
mod space;

pub use scan::{Holders, PermissionStats, Scan};
pub use space::PermissionSpace;
pub use windlass_core::permissions::{Level, Scale, Schema};

use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;

/// How often others may change the schema while we extend it, before we give up.
const TRIES: u32 = 20;

/// A space of permissions to be: its name, its levels and its resources.
///
/// A subject's permissions are a few bits each in one string: a million subjects with 16 resources of four
/// levels take 96 MB of Redis, and are read with one command. The *schema*, which says what the bits mean,
/// is stored beside them. Names can be added at its end; a program that comes with another order gets an
/// error, and never reads the wrong bits.
///
/// # Example
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let repos = w
///     .permissions("repos")
///     .levels(["no", "read", "write", "read-write"])
///     .resources(["repo1", "repo2", "repo3"])
///     .define()
///     .await?;
/// repos.set("Piers", "repo1", "read-write").await?;
/// assert_eq!(repos.get("Piers", "repo1").await?, "read-write");
/// assert!(repos.check("Piers", "repo1", "read").await?);
/// assert!(!repos.check("Fiers", "repo1", "read").await?, "nobody has the lowest level");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is sent until the space is defined or opened"]
pub struct Permissions {
    coordinator: Coordinator,
    name: String,
    scale: Scale,
    levels: Vec<String>,
    bits: Option<u32>,
    resources: Vec<String>,
}

impl Permissions {
    pub(crate) fn new(coordinator: Coordinator, name: &str) -> Permissions {
        Permissions {
            coordinator,
            name: name.to_owned(),
            scale: Scale::Ranked,
            levels: Vec::new(),
            bits: None,
            resources: Vec::new(),
        }
    }

    /// Levels, the lowest first: each includes those before it. The first is the level of whoever was never
    /// given any.
    pub fn levels<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Permissions {
        self.scale = Scale::Ranked;
        self.levels = names.into_iter().map(Into::into).collect();
        self
    }

    /// Flags that combine, instead of levels that rank: written `read|write`, and `none` for none of them.
    pub fn flags<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Permissions {
        self.scale = Scale::Flags;
        self.levels = names.into_iter().map(Into::into).collect();
        self
    }

    /// How many bits each resource has, if more levels may be added one day. As few as the levels need,
    /// unless told otherwise; it cannot be changed later.
    pub fn bits(mut self, bits: u32) -> Permissions {
        self.bits = Some(bits);
        self
    }

    /// The resources, in an order that stays.
    pub fn resources<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Permissions {
        self.resources = names.into_iter().map(Into::into).collect();
        self
    }

    /// Defines the space, or finds it and adds the levels and resources that it lacks. If a removal of it was
    /// interrupted, that is brought to its end, too.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schema may or may not have been stored; defining it again is harmless.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for names that cannot work, [`ErrorKind::Mismatch`] if the space was
    /// defined otherwise.
    pub async fn define(&self) -> Result<PermissionSpace> {
        let operation = "define the space";
        let wanted = Schema::new(
            self.scale,
            self.levels.clone(),
            self.bits,
            self.resources.clone(),
        )
        .map_err(|e| e.with_name(&self.name))?;
        let name = self.checked(operation)?;
        let store = self.coordinator.backend().permissions();
        for _ in 0..TRIES {
            let before = self.ask(operation, store.schema(name.clone())).await?;
            let next = match &before {
                // With an id of its own each time: one may be taken by what was removed.
                None => wanted.clone().with_fresh_id(),
                Some(before) => {
                    let extended = before.extended(&wanted, self.bits.is_some());
                    let extended = extended.map_err(|e| e.with_name(&self.name));
                    match extended.map_err(|e| self.coordinator.describe(e))? {
                        None => return self.defined(name, before.clone()).await,
                        Some(next) => next,
                    }
                }
            };
            let answer = store.define(name.clone(), before, next.clone());
            if self.ask(operation, answer).await? {
                return self.defined(name, next).await;
            }
        }
        let busy = "others keep changing the schema";
        let error = Error::new(ErrorKind::Store, operation, busy).with_name(&self.name);
        Err(self.coordinator.describe(error))
    }

    /// Nothing that was removed may stay for ever: whoever defines the space sees to it.
    async fn defined(&self, name: Name, schema: Schema) -> Result<PermissionSpace> {
        if let Err(error) = self.sweep_leftovers(&name).await {
            tracing::warn!(%error, "what was removed is not cleared away yet");
        }
        Ok(self.space(name, schema))
    }

    /// Opens a space that was defined before, with the schema that is stored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none.
    pub async fn open(&self) -> Result<PermissionSpace> {
        let operation = "open the space";
        let name = self.checked(operation)?;
        let store = self.coordinator.backend().permissions();
        match self.ask(operation, store.schema(name.clone())).await? {
            Some(schema) => Ok(self.space(name, schema)),
            None => Err(self
                .coordinator
                .describe(space::gone(operation, &self.name))),
        }
    }

    fn space(&self, name: Name, schema: Schema) -> PermissionSpace {
        PermissionSpace::new(self.coordinator.clone(), &self.name, name, schema)
    }

    fn checked(&self, operation: &'static str) -> Result<Name> {
        Name::new(operation, self.coordinator.namespace(), &self.name)
    }

    async fn ask<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.coordinator.call(operation, &self.name, answer).await
    }
}
