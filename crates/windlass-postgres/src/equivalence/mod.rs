//! Equivalence tests: a function of the schema and the rule it implements get the same random
//! operations, and must give the same answers and leave the same state.

mod claims;
mod fixture;
mod gate;
mod latch;
