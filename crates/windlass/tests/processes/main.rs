//! Tests of several processes, some of which are killed or frozen at the worst moment.

mod limits;
mod locks;
mod pools;
