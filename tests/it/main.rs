//! Behaviour through the public interfaces, and the law of the house. One binary, so that a change of the library links
//! once; one module for each behaviour.

mod golden;
mod licences;
mod protos;
mod tidy;
