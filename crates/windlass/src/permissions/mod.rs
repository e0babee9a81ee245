//! [`Permissions`]: what each subject may do with each resource, in a few bits per pair.

mod removal;
mod scan;
mod space;

pub use scan::{PermissionHolders, PermissionScan, PermissionStats};
pub use space::PermissionSpace;
use windlass_core::permissions::{Level, Scale, Schema};

use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;

/// How often other clients may change the schema before extending it fails.
const TRIES: u32 = 20;

/// A permission space to define or open: its name, its levels and its resources.
///
/// A subject's permissions are a few bits each in one string: a million subjects with 16 resources of four
/// levels take 96 MB of Redis, and are read with one command. The *schema*, which says what the bits mean, is stored
/// beside them. Names can be added at its end. A client with another order gets an error, and never reads the
/// wrong bits.
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
/// assert!(!repos.check("Fiers", "repo1", "read").await?, "an unknown subject has the lowest level");
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

    /// The levels, lowest first: each includes those before it. The first is the level of an unknown subject.
    pub fn levels<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Permissions {
        self.scale = Scale::Ranked;
        self.levels = names.into_iter().map(Into::into).collect();
        self
    }

    /// Flags that combine, instead of ranked levels: written `read|write`, and `none` for none of them.
    pub fn flags<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Permissions {
        self.scale = Scale::Flags;
        self.levels = names.into_iter().map(Into::into).collect();
        self
    }

    /// The bits per resource, to leave room for more levels; as few as the levels need by default. It cannot be changed
    /// later.
    pub fn bits(mut self, bits: u32) -> Permissions {
        self.bits = Some(bits);
        self
    }

    /// The resources, in an order that must not change.
    pub fn resources<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Permissions {
        self.resources = names.into_iter().map(Into::into).collect();
        self
    }

    /// Defines the space, or opens it and adds the levels and resources that it lacks. Also completes an interrupted
    /// removal.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schema may or may not have been stored; defining it again is harmless.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for invalid names, [`ErrorKind::Mismatch`] if the space was defined differently.
    pub async fn define(&self) -> Result<PermissionSpace> {
        let operation = "define the space";
        let wanted = Schema::new(
            self.scale,
            self.levels.clone(),
            self.bits,
            self.resources.clone(),
        )
        .map_err(|e| e.with_name(&self.name))?;
        let name = self.full_name(operation)?;
        let store = self.coordinator.backend().permissions();
        for _ in 0..TRIES {
            let before = self.call(operation, store.schema(name.clone())).await?;
            let next = match &before {
                // A new id each time: leftovers of a removed space may still use an old one.
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
            let reply = store.define(name.clone(), before, next.clone());
            if self.call(operation, reply).await? {
                return self.defined(name, next).await;
            }
        }
        let message = "other clients keep changing the schema";
        let error = Error::new(ErrorKind::Store, operation, message).with_name(&self.name);
        Err(self.coordinator.describe(error))
    }

    /// Defining a space also sweeps the leftovers of removed ones, so that they do not stay for ever.
    async fn defined(&self, name: Name, schema: Schema) -> Result<PermissionSpace> {
        if let Err(error) = self.sweep_leftovers(&name).await {
            tracing::warn!(%error, "the leftovers of a removed permission space are not deleted yet");
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
        let name = self.full_name(operation)?;
        let store = self.coordinator.backend().permissions();
        match self.call(operation, store.schema(name.clone())).await? {
            Some(schema) => Ok(self.space(name, schema)),
            None => Err(self
                .coordinator
                .describe(space::gone(operation, &self.name))),
        }
    }

    fn space(&self, name: Name, schema: Schema) -> PermissionSpace {
        PermissionSpace::new(self.coordinator.clone(), &self.name, name, schema)
    }

    fn full_name(&self, operation: &'static str) -> Result<Name> {
        Name::new(operation, self.coordinator.namespace(), &self.name)
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        reply: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.coordinator.call(operation, &self.name, reply).await
    }
}
