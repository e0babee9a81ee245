mod fake_node;
mod fixture;
mod lost_replies;
mod partial_grants;
mod same_owner;
mod server_identity;
