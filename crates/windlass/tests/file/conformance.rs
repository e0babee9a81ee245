//! The conformance suite on `file:`.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(TestStore::file);
