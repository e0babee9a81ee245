//! Everything that all stores of coordination must do, on etcd 3.4.

use windlass_testkit::EtcdVersion;
use windlass_testkit::conformance::TestStore;

windlass_testkit::conformance_without_flow_and_data!(|| TestStore::etcd(EtcdVersion::V3_4));
