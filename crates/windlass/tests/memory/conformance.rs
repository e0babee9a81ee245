//! The conformance suite on `memory:`.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(TestStore::memory);
