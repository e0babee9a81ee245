//! The conformance suite on a replicated Redis with sentinels.

use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance!(TestStore::sentinel);
