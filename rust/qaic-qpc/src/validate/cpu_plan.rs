//! Checks that the program for the `cpu` device, if there is one, is complete.

use super::{Image, Report};
use crate::bytes::to_u64;
use crate::container::names::{CONSTANTS, NETWORK_ELF};
use crate::network_desc::NetworkDesc;
use crate::plan::{self, Plan, PlanError};

pub(super) fn validate(image: Image<'_>, network: Option<&NetworkDesc>, file: &[u8], report: &mut Report) {
    let plan = match Plan::of_elf(file) {
        Ok(Some(plan)) => plan,
        Ok(None) => return,
        Err(error) => return add_plan_error(report, NETWORK_ELF, &error),
    };
    match plan::graph(file) {
        Ok(Some(_)) => {}
        Ok(None) => report.add_error("qpc.cpu_graph", NETWORK_ELF, "found a plan but no graph".to_owned()),
        Err(error) => report.error(Some(NETWORK_ELF), &error),
    }
    if let Some(network) = network {
        let checks =
            [plan.check_network(network), plan.check_control_buffer(network), plan.check_state_rows()];
        for checked in checks {
            if let Err(error) = checked {
                add_plan_error(report, NETWORK_ELF, &error);
            }
        }
    }
    let constants =
        image.container.segment(CONSTANTS).map(|segment| segment.range.clone()).unwrap_or_default();
    let ranges =
        plan.initializers.iter().map(|one| one.range(constants.len(), to_u64(constants.start)).map(drop));
    for checked in ranges.chain([plan.check_distinct()]) {
        if let Err(error) = checked {
            add_plan_error(report, CONSTANTS, &error);
        }
    }
}

fn add_plan_error(report: &mut Report, segment: &str, error: &PlanError) {
    report.add_error(error.code(), segment, error.to_string());
}
