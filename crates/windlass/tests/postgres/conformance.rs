//! The conformance suite on PostgreSQL.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(TestStore::postgres);
